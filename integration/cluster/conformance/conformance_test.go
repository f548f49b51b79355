package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/image"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestImages(t *testing.T) {
	bin := t.TempDir()
	n := &node.Node{Options: node.Options{Bin: bin}, Kubernetes: filepath.Join(bin, "k8s")}
	base := filepath.Join(bin, "base.tar")
	for _, file := range []string{base, bin + "/tools/coredns", bin + "/tools/podimage", bin + "/k8s/agnhost"} {
		testutil.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		testutil.Must(t, os.WriteFile(file, []byte(file), 0o600))
	}
	names := []string{"x.test/e2e/agnhost:2.63.0", "x.test/e2e/busybox:1.37.0-1", "x.test/e2e/glibc-dns-testing:2.0.0", "x.test/pause:3.10.2"}
	got, err := called(names, n, base)
	testutil.Must(t, err)
	var made []string
	for _, i := range got {
		made = append(made, i.Name)
		if err := i.Write(new(bytes.Buffer)); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(names, made); d != "" {
		t.Error(d)
	}
	// The tests' own words: the path of a server next to agnhost, and agnhost's at the root.
	agnhost := got[slices.IndexFunc(got, func(i image.Image) bool { return strings.Contains(i.Name, "agnhost") })]
	if agnhost.Files["agnhost"] == "" || agnhost.Files["coredns"] == "" || agnhost.Base != base || agnhost.Entrypoint[0] != "/agnhost" {
		t.Errorf("agnhost's image is %+v", agnhost)
	}
	if _, err := called([]string{"x.test/nginx:1"}, n, base); err == nil || !strings.Contains(err.Error(), "nginx") {
		t.Errorf("an image that nobody makes: %v", err)
	}
}

func TestTally(t *testing.T) {
	run := tally{before: 100}
	run.killed(150)
	run.killed(0) // it had no time to answer
	run.killed(70)
	if got := run.since(5); got != 125 || run.kills != 3 {
		t.Errorf("%d questions and %d kills, want 125 and 3", got, run.kills)
	}
}
