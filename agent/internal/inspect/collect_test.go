package inspect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestDoctorReadsTheWatch(t *testing.T) {
	l := Inspector{Conf: &config.Node{Folders: config.Folders{StateDir: t.TempDir()}}}
	if w := l.watch(); w != nil {
		t.Errorf("without a watch: %+v", w)
	}
	seen := nodestate.Watch{Looked: time.Unix(1, 0).UTC(), Fault: "why", Fighting: true, Repairs: 3}
	testutil.Must(t, nodestate.WatchFile(l.Conf.StateDir).Write(seen))
	if w := l.watch(); w == nil || !w.Looked.Equal(seen.Looked) || w.Fault != "why" || !w.Fighting || w.Repairs != 3 {
		t.Errorf("of %+v: %+v", seen, w)
	}
	testutil.Must(t, os.WriteFile(nodestate.WatchFile(l.Conf.StateDir).Path, []byte("{"), 0o600))
	if w := l.watch(); w == nil || w.Fault == "" {
		t.Errorf("of half a file: %+v", w)
	}
}

func TestDoctorReadsTheHostsRole(t *testing.T) {
	l := Inspector{Conf: &config.Node{Folders: config.Folders{StateDir: t.TempDir()}}}
	now := time.Unix(1_700_000_000, 0)
	if h := l.hosts(now); h.Present {
		t.Errorf("without the role: %+v", h)
	}
	state := nodestate.Hosts{Since: now.Add(-time.Hour), Looked: now.Add(-time.Minute), Fault: "what", Services: []nodestate.HostsService{{Name: "shop/registry"}}}
	testutil.Must(t, nodestate.HostsFile(l.Conf.StateDir).Write(state))
	if h := l.hosts(now); !h.Present || !h.Looked.Equal(now.Add(-time.Minute)) || h.Fault != "what" || h.Services[0].Standing != "missing" {
		t.Errorf("of %+v: %+v", state, h)
	}
	testutil.Must(t, os.WriteFile(nodestate.HostsFile(l.Conf.StateDir).Path, []byte("{"), 0o600))
	if h := l.hosts(now); !h.Present || h.Fault == "" {
		t.Errorf("of half a file: %+v", h)
	}
}

func TestDoctorReadsNetworks(t *testing.T) {
	redirects := []steer.Redirect{{ClusterDNS: vip}}
	const plain = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}]}`
	const with = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}, {"type": "neardns", "redirects": ["10.96.0.10"]}]}`
	const full = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "ptp"}, {"type": "neardns", "redirects": [{"clusterDNS": "10.96.0.99"}]}]}`
	for name, tc := range map[string]struct {
		files map[string]string
		mode  os.FileMode // of the plugin; 0: none
		want  network
	}{
		"nothing": {nil, 0, network{pluginErr: "none"}},
		"good":    {map[string]string{"10-a.conflist": with, "README": "x"}, 0o755, network{effective: "10-a.conflist", entry: true}},
		"shadowed": {map[string]string{"05-b.conf": plain, "10-a.conflist": with}, 0o644,
			network{effective: "05-b.conf", elsewhere: []string{"10-a.conflist"}, pluginErr: "it is not executable"}},
		"different": {map[string]string{"10-a.conflist": full}, 0o755, network{effective: "10-a.conflist", entry: true, missing: []string{"10.96.0.10"}}},
	} {
		t.Run(name, func(t *testing.T) {
			confDir, binDir := t.TempDir(), t.TempDir()
			for file, text := range tc.files {
				testutil.Must(t, os.WriteFile(filepath.Join(confDir, file), []byte(text), 0o600))
			}
			if tc.mode != 0 {
				testutil.Must(t, os.WriteFile(filepath.Join(binDir, "neardns"), nil, tc.mode))
			}
			l := Inspector{CNIConf: confDir, CNIBin: binDir}
			got := l.network(redirects)
			got.effective = strings.TrimPrefix(got.effective, confDir+"/")
			for i := range got.elsewhere {
				got.elsewhere[i] = filepath.Base(got.elsewhere[i])
			}
			if strings.Contains(got.pluginErr, "no such file") {
				got.pluginErr = "none"
			}
			tc.want.folder, tc.want.plugin = confDir, filepath.Join(binDir, "neardns")
			testutil.Equal(t, "network", tc.want, got, cmp.AllowUnexported(network{}))
		})
	}
}
