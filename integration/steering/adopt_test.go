package steering

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestAdopt: pods that run are steered as they stand, but those whose owner does not want it; they are checked, given back and taken
// down like others, with the plugin's DEL or without.
func TestAdopt(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, attach: testutil.PTP, proven: true, adopt: true},
		{families: testutil.IPv4, proxy: testutil.IPTables, attach: testutil.BridgeCNI, proven: true, adopt: true},
		{families: testutil.IPv6, attach: testutil.BridgeCNI, proven: true, adopt: true},
		{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.PTP, proven: true, adopt: true, backend: "iptables-nft"},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, s)
			running := n.addRunningPods(4, nil)
			out := n.addRunningPods(1, map[string]string{"neardns.io/steer": "false"})[0]
			cluster := targets(n.ClusterDNS()...)
			n.startAgent()
			for _, p := range running {
				testutil.Eventually(t, func() error { return p.adopted(podfile.Steered) })
				n.wantSteered(p.client(), "adopted", n.all()...)
			}
			testutil.Eventually(t, func() error { return out.adopted(podfile.LeftAlone) })
			if d := out.decisions()[0]; !strings.Contains(d.Reason, "neardns.io/steer") {
				t.Errorf("opted out: %+v", d)
			}
			n.wantFallback(client{out.NetNS, out.addrs}, "opted out", cluster...)
			out.wantNoRules("opted out")
			testutil.Check(t, running[0].check(), "CHECK")

			// The plugin's DEL comes for one, for another it does not, and a third loses its netns without any.
			running[0].delBy(true)
			running[1].delBy(false)
			running[1].Delete()
			running[2].Delete()
			for i, p := range running[:3] {
				testutil.Eventually(t, func() error {
					if exists(podfile.Path(n.stateDir(), p.container(), "eth0")) {
						return fmt.Errorf("pod %d has a file", i)
					}
					return testutil.ErrorIf(i == 0 && p.ours(), "pod %d has rules", i)
				})
			}
			n.wantNoFaults()

			// A successor finds them adopted already; a killed agent leaves them as any other.
			n.kill()
			n.wantFallback(running[3].client(), "killed", cluster...)
			n.startAgent()
			n.wantSteered(running[3].client(), "again", n.all()...)

			testutil.Must(t, n.agent.Terminate(testutil.Patience()))
			n.prints(cli.Good, n.cleanup())
			running[3].wantNoRules("cleaned up")
			n.wantFallback(client{running[3].NetNS, running[3].addrs}, "cleaned up", cluster...)
			testutil.Equal(t, "files left", []string{}, n.files())
		})
	}
}

// adopted returns an error unless the pod was adopted and all of its decisions are in one state.
func (p *pod) adopted(state podfile.State) error {
	f, err := podfile.Read(podfile.Path(p.node.stateDir(), p.container(), "eth0"))
	if err != nil {
		return err
	}
	if f.Adopted != podfile.ByCache {
		return fmt.Errorf("%s is adopted by %q", p.name, f.Adopted)
	}
	if f.PodName != p.name || f.PodNamespace != "default" || !cmp.Equal(f.Addresses, p.addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
		return fmt.Errorf("%s: file of %s/%s at %v", p.name, f.PodNamespace, f.PodName, f.Addresses)
	}
	return p.in(state)
}

// A file that outlived its container names a path that is another pod's by now, or none; and what is no pod's is left.
func TestAdoptStale(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{attach: testutil.PTP, proven: true, adopt: true})
	living, mine := n.addRunningPods(1, nil)[0], n.addPod(nil)
	copyOf := func(p *pod, name string, change func(object)) {
		t.Helper()
		path, old := "cni-cache/results/pods-"+name+"-eth0", time.Now().Add(-time.Hour)
		n.write(path, n.read("cni-cache/results/pods-"+p.container()+"-eth0"))
		n.rewrite(n.path(path), func(f object) { f["containerId"] = name; change(f) })
		testutil.Must(t, os.Chtimes(n.path(path), old, old))
	}
	address := func(f object, a string) {
		f["result"].(object)["ips"].([]any)[0].(object)["address"] = a
	}
	copyOf(living, "same-everything", func(object) {})
	copyOf(mine, "the-plugins", func(object) {})
	copyOf(living, "other-address", func(f object) { address(f, "10.244.1.250/32") })
	copyOf(living, "gone", func(f object) { f["netns"] = "/run/netns/no-such" })
	copyOf(living, "hosts", func(f object) { f["netns"] = n.Host.Path() })
	copyOf(living, "no-netns", func(f object) { f["netns"] = n.path("node.yaml") })
	copyOf(living, "relative", func(f object) { f["netns"] = "../x" })
	copyOf(living, "no-pod", func(f object) { f["cniArgs"] = []any{} })
	copyOf(living, "other-kind", func(f object) { f["kind"] = "else" })
	n.write("cni-cache/results/pods-half-eth0", `{"kind":"cniCac`)
	n.startAgent()
	testutil.Eventually(t, func() error { return living.adopted(podfile.Steered) })
	n.awaitLog(0, "none of the addresses 10.244.1.250")
	n.awaitLog(0, "its netns now belongs to")
	files, err := filepath.Glob(filepath.Join(n.stateDir(), "pods", "*.json"))
	if err != nil || len(files) != 2 {
		t.Errorf("files: %v %v, want those of two pods", files, err)
	}
	if f, err := podfile.Read(podfile.Path(n.stateDir(), mine.container(), "eth0")); err != nil || f.Adopted != "" {
		t.Errorf("the plugin's own: %+v, %v", f, err)
	}
	// One that comes is adopted while the agent runs, and a cache that is not there has no pod bypassed.
	late := n.addRunningPods(1, nil)[0]
	testutil.Eventually(t, func() error { return late.adopted(podfile.Steered) })
	testutil.Must(t, os.Rename(n.path("cni-cache"), n.path("away")))
	n.hup()
	n.wantSteered(living.client(), "without a cache", n.all()...)
	testutil.Check(t, living.adopted(podfile.Steered))
}

// TestAdoptAgain: the agent comes to pods that run, is killed once the first one is steered, comes back, and pods end meanwhile. kube-dns
// answers while no agent runs, then all pods that stay are steered.
func TestAdoptAgain(t *testing.T) {
	n := newNode(t, setup{attach: testutil.PTP, proven: true, adopt: true})
	pods := n.addRunningPods(10, nil)
	ending, staying := pods[:3], pods[3:]
	cluster := targets(n.ClusterDNS()...)
	n.launchAgent()
	testutil.Eventually(t, func() error { return staying[0].adopted(podfile.Steered) })
	n.agent.Kill()
	for _, p := range staying {
		for _, at := range cluster {
			testutil.Eventually(t, func() error { return wrap("killed", p.client().fellBack(at, testutil.Attempt)) })
		}
	}
	n.launchAgent()
	for i, p := range ending {
		p.delBy(i%2 == 0)
		p.Delete()
	}
	for _, p := range staying {
		testutil.Eventually(t, func() error { return p.adopted(podfile.Steered) })
		n.wantSteered(p.client(), "adopted", cluster...)
	}
	n.awaitReady()
	for _, p := range ending {
		testutil.Eventually(t, func() error {
			return testutil.ErrorIf(exists(podfile.Path(n.stateDir(), p.container(), "eth0")), "%s, which ended, has a file", p.name)
		})
	}
}
