package inspect

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/nodestate"
)

func TestDoctorReadsTheWatch(t *testing.T) {
	l := Inspector{Conf: &config.Node{StateDir: t.TempDir()}}
	if w := l.watch(); w.Present {
		t.Errorf("without a watch: %+v", w)
	}
	seen := nodestate.Watch{Looked: time.Unix(1, 0).UTC(), Fault: "why", Fighting: true, Repairs: 3}
	if err := nodestate.WriteWatch(l.Conf.StateDir, seen); err != nil {
		t.Fatal(err)
	}
	if w := l.watch(); !w.Present || w.Age < time.Hour || w.Fault != "why" || !w.Fighting || w.Repairs != 3 {
		t.Errorf("of %+v: %+v", seen, w)
	}
	if err := os.WriteFile(nodestate.WatchPath(l.Conf.StateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w := l.watch(); !w.Present || w.Fault == "" {
		t.Errorf("of half a file: %+v", w)
	}
}

func TestDoctorReadsTheHostsRole(t *testing.T) {
	l := Inspector{Conf: &config.Node{StateDir: t.TempDir()}}
	now := time.Unix(1_700_000_000, 0)
	if h := l.hosts(now); h.Present {
		t.Errorf("without the role: %+v", h)
	}
	said := nodestate.Hosts{Since: now.Add(-time.Hour), Looked: now.Add(-time.Minute), Fault: "what", Services: []nodestate.HostsService{{Name: "shop/registry"}}}
	if err := nodestate.WriteHosts(l.Conf.StateDir, said); err != nil {
		t.Fatal(err)
	}
	if h := l.hosts(now); !h.Present || h.Age.Round(time.Second) != time.Minute || h.Fault != "what" || h.Services[0].Standing != "missing" {
		t.Errorf("of %+v: %+v", said, h)
	}
	if err := os.WriteFile(nodestate.HostsPath(l.Conf.StateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if h := l.hosts(now); !h.Present || h.Fault == "" {
		t.Errorf("of half a file: %+v", h)
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
		want  Network
	}{
		"nothing": {nil, 0, Network{PluginErr: "none"}},
		"good":    {map[string]string{"10-a.conflist": with, "README": "x"}, 0o755, Network{Effective: "10-a.conflist", Entry: true}},
		"shadowed": {map[string]string{"05-b.conf": plain, "10-a.conflist": with}, 0o644,
			Network{Effective: "05-b.conf", Elsewhere: []string{"10-a.conflist"}, PluginErr: "it is not executable"}},
		"different": {map[string]string{"10-a.conflist": full}, 0o755, Network{Effective: "10-a.conflist", Entry: true, Missing: []string{"10.96.0.10"}}},
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
			l := Inspector{CNIConf: confDir, CNIBin: binDir}
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
