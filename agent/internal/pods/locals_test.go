package pods

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

var local4 = steer.Local{Address: netip.MustParseAddr("169.254.20.10"), ClusterDNS: r4.ClusterDNS}

func naming(f podfile.File, locals ...steer.Local) podfile.File {
	for i := range f.Decisions {
		for _, l := range locals {
			if f.Decisions[i].Redirect.ClusterDNS == l.ClusterDNS {
				f.Decisions[i].Local = l.Address
			}
		}
	}
	return f
}

// The switch goes on for local addresses that pods name and the configuration has no more.
func TestLocals(t *testing.T) {
	dir := t.TempDir()
	old := steer.Local{Address: netip.MustParseAddr("169.254.20.9"), ClusterDNS: r4.ClusterDNS}
	for i, l := range []steer.Local{local4, old, old} {
		write(t, dir, naming(podfile.File{ContainerID: string(rune('a' + i)), IfName: "eth0", Decisions: decisions(podfile.Steered, r4)}, l))
	}
	write(t, dir, podfile.File{ContainerID: "d", IfName: "eth0", Decisions: decisions(podfile.Steered, r4, r6)})
	p := registry(dir)
	for _, c := range []struct {
		name       string
		configured []steer.Local
		redirects  []steer.Redirect
		want       []steer.Local
	}{
		{"both configured", []steer.Local{local4, old}, nil, nil},
		{"one taken out", []steer.Local{local4}, []steer.Redirect{r4}, []steer.Local{old}},
		{"none configured", nil, nil, []steer.Local{old, local4}},
		{"a steering address by now", []steer.Local{local4}, []steer.Redirect{redirect("10.96.0.10", "169.254.20.9")}, nil},
	} {
		testutil.Equal(t, c.name, c.want, p.Locals(c.configured, c.redirects))
	}
}

// After neardns is removed from a node, no pod has a nameserver at which no program answers.
func TestRestoreNameservers(t *testing.T) {
	n := newNode(t, testutil.PTP)
	root := t.TempDir()
	pods := map[string]*testutil.Pod{"laid": n.AddPod("laid"), "own": n.AddPod("own"), "plain": n.AddPod("plain")}
	paths := map[string]string{}
	for id, pod := range pods {
		f := fileOf(pod, id, "eth0", decisions(podfile.Steered, r4))
		paths[id] = filepath.Join(root, id)
		text := "# the runtime's\nsearch a.example\nnameserver 169.254.20.10\noptions ndots:5\n"
		testutil.Must(t, os.WriteFile(paths[id], []byte(text), 0o644))
		f.DNS = &podfile.DNS{State: podfile.AsGiven, Path: "/" + id}
		if id != "plain" {
			f = naming(f, local4)
		}
		if id == "laid" {
			f.DNS.State, f.DNS.Method = podfile.Overlaid, podfile.MethodFile
			f.DNS.Overlay = &resolvconf.Overlay{Instead: map[string]string{"10.96.0.10": "169.254.20.10"}}
		}
		write(t, n.dir, f)
	}
	for range 2 { // twice is as once
		err := n.RestoreNameservers(root)
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "pod default/own (container own, eth0) names 169.254.20.10") {
			t.Errorf("the pod that names it by itself is to be named, alone: %v", err)
		}
		for id, path := range paths {
			got, err := os.ReadFile(path)
			if err != nil || strings.Contains(string(got), "nameserver 10.96.0.10\n") != (id == "laid") || !strings.HasPrefix(string(got), "# the runtime's\nsearch a.example\n") {
				t.Errorf("%s: %s (%v)", id, got, err)
			}
		}
	}
	testutil.Must(t, os.Remove(paths["laid"]))
	testutil.WantError(t, n.RestoreNameservers(root), "laid", "a pod that lives and has no file to be found")
	for _, id := range []string{"laid", "own"} {
		pods[id].Close()
	}
	testutil.Check(t, n.RestoreNameservers(root), "pods that are gone")
}
