package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/platform"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// Each folder of testdata/platforms has a node's files as that platform lays them, cut to what matters (package platform cites the
// sources), with the variables of an agent's pod in env. detected is what is found there, and by what.
func TestPlatforms(t *testing.T) {
	trees, err := filepath.Glob("testdata/platforms/*")
	if err != nil || len(trees) < 12 {
		t.Fatal(trees, err)
	}
	for _, tree := range trees {
		t.Run(filepath.Base(tree), func(t *testing.T) {
			e := treeEnv(tree)
			n, err := Load("", e)
			testutil.Must(t, err)
			var b strings.Builder
			for _, d := range n.Detected() {
				if slices.Contains([]string{"clusterDomain", "redirects", "localAddresses", "resolvConf.host"}, d.Field) {
					fmt.Fprintf(&b, "%s: %s  # %s\n", d.Field, d.Value, d.Source)
				}
			}
			golden.File(t, filepath.Join(tree, "detected"), b.String()+n.showPlatform())

			// The installer, run on such a node, has its folders.
			here, _ := platform.Here(func(path string) bool { _, err := os.Stat(filepath.Join(tree, path)); return err == nil }, e.LookupEnv)
			testutil.Equal(t, "the installer's platform", n.platform, here)
			if lists, _ := filepath.Glob(filepath.Join(tree, here.CNIConf, "*.conf*")); len(lists) == 0 {
				t.Errorf("%s: no network configuration in %s", here.Name, here.CNIConf)
			}
			// The copy that the installer makes of the kubelet's settings gives the agent the same.
			k, ok, err := n.Kubelet(e)
			if err != nil || ok != (n.platformBy != "" && n.platformBy == n.platform.Kubelet) {
				t.Error(k, ok, err)
			}
		})
	}
}

// treeEnv is the environment of a program that sees a tree as the root.
func treeEnv(tree string) Env {
	return Env{
		LookupEnv: func(name string) (string, bool) {
			text, _ := os.ReadFile(filepath.Join(tree, "env"))
			for line := range strings.Lines(string(text)) {
				if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
					return value, true
				}
			}
			return "", false
		},
		ReadFile: func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(tree, path)) },
		Glob: func(pattern string) ([]string, error) {
			found, err := filepath.Glob(filepath.Join(tree, pattern))
			for i := range found {
				found[i] = strings.TrimPrefix(found[i], tree)
			}
			return found, err
		},
	}
}
