package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/doctor"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestDoctorChangesNothing runs the command on an empty node: it says all that is missing and makes none of it.
func TestDoctorChangesNothing(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "doctor")
	dir := t.TempDir()
	conf := filepath.Join(dir, "node.yaml")
	text := head + "redirects: [10.96.0.10]\nupstreams: {external: [192.0.2.1]}\nstateDir: " + dir + "/run\npersistDir: " + dir + "/lib\n"
	state := func() string {
		return ns.Run("nft", "list", "ruleset") + ns.Run("sh", "-c", "ip -o link | cut -d: -f2; ip -o address | awk '{print $2, $4}'")
	}
	before := state()
	for _, tc := range []struct {
		args []string
		want string
	}{{nil, "\nDEGRADED: "}, {[]string{"--json"}, `"good": false`}} {
		e, stdout, stderr := fake(map[string]string{conf: text}, append([]string{"doctor", "--config", conf, "--cni-conf", dir, "--cni-bin", dir}, tc.args...)...)
		var code int
		ns.Do(func() { code = run(t.Context(), e) })
		if code != exitDegraded || !strings.Contains(stdout.String(), tc.want) {
			t.Errorf("doctor %v: exit code %d\n%s%s", tc.args, code, stdout, stderr)
		}
	}
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Errorf("the doctor changed the node:\n%s", diff)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the doctor left files: %v %v", left, err)
	}
}

func TestDoctorReadsTheWatch(t *testing.T) {
	l := looker{conf: &config.Node{StateDir: t.TempDir()}}
	if w := l.watch(); w.Present {
		t.Errorf("without a watch: %+v", w)
	}
	seen := podfile.Watch{Looked: time.Now().Add(-time.Hour), Fault: "why", Fighting: true, Repairs: 3}
	if err := podfile.WriteWatch(l.conf.StateDir, seen); err != nil {
		t.Fatal(err)
	}
	if w := l.watch(); !w.Present || w.Age < time.Hour || w.Fault != "why" || !w.Fighting || w.Repairs != 3 {
		t.Errorf("of %+v: %+v", seen, w)
	}
	if err := os.WriteFile(podfile.WatchPath(l.conf.StateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w := l.watch(); !w.Present || w.Fault == "" {
		t.Errorf("of half a file: %+v", w)
	}
}

func TestDoctorReadsNetworks(t *testing.T) {
	vip := []netip.Addr{netip.MustParseAddr("10.96.0.10")}
	const plain = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}]}`
	const with = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}, {"type": "neardns", "redirects": ["10.96.0.10"]}]}`
	const full = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}, {"type": "neardns", "redirects": [{"clusterDNS": "10.96.0.99"}]}]}`
	for name, tc := range map[string]struct {
		files map[string]string
		mode  os.FileMode // of the plugin; 0: none
		want  doctor.Network
	}{
		"nothing":   {nil, 0, doctor.Network{PluginErr: "none"}},
		"good":      {map[string]string{"10-a.conflist": with, "README": "x"}, 0o755, doctor.Network{Effective: "10-a.conflist", Entry: true}},
		"shadowed":  {map[string]string{"05-b.conf": plain, "10-a.conflist": with}, 0o644, doctor.Network{Effective: "05-b.conf", Elsewhere: []string{"10-a.conflist"}, PluginErr: "it is not executable"}},
		"different": {map[string]string{"10-a.conflist": full}, 0o755, doctor.Network{Effective: "10-a.conflist", Entry: true, Missing: []string{"10.96.0.10"}}},
	} {
		t.Run(name, func(t *testing.T) {
			confDir, binDir := t.TempDir(), t.TempDir()
			for file, text := range tc.files {
				if err := os.WriteFile(filepath.Join(confDir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tc.mode != 0 {
				if err := os.WriteFile(filepath.Join(binDir, "neardns"), nil, tc.mode); err != nil {
					t.Fatal(err)
				}
			}
			l := looker{cniConf: confDir, cniBin: binDir}
			got := l.network(vip)
			got.Effective = strings.TrimPrefix(got.Effective, confDir+"/")
			for i := range got.Elsewhere {
				got.Elsewhere[i] = filepath.Base(got.Elsewhere[i])
			}
			if strings.Contains(got.PluginErr, "no such file") {
				got.PluginErr = "none"
			}
			tc.want.Folder, tc.want.Plugin = confDir, filepath.Join(binDir, "neardns")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
