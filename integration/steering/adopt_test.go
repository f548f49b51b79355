package steering

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// adoptedWithin is how long after it serves an agent has steered the pods that ran before it.
const adoptedWithin = 2 * time.Second

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
			if out.ours() {
				t.Errorf("rules in a pod that opted out:\n%s", out.rules())
			}
			if err := running[0].check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}

			// The plugin's DEL comes for one, for another it does not, and a third loses its netns without any.
			running[0].delBy(true)
			running[1].delBy(false)
			running[2].Delete()
			for i, p := range running[:3] {
				testutil.Eventually(t, func() error {
					if exists(podfile.Path(n.stateDir(), p.container(), "eth0")) {
						return fmt.Errorf("pod %d has a file", i)
					}
					if i < 2 && p.ours() {
						return fmt.Errorf("pod %d has rules:\n%s", i, p.rules())
					}
					return nil
				})
			}
			if len(n.agent.Output()) == 0 || strings.Contains(n.agent.Output(), "level=ERROR") {
				t.Errorf("the agent's log:\n%s", n.agent.Output())
			}

			// A successor finds them adopted already; a killed agent leaves them as any other.
			n.agent.Kill()
			<-n.agent.Exited()
			n.wantFallback(running[3].client(), "killed", cluster...)
			n.startAgent()
			n.wantSteered(running[3].client(), "again", n.all()...)

			testutil.Must(t, n.agent.Terminate(patience))
			if code, _, stderr := n.cleanup(); code != 0 {
				t.Fatalf("cleanup exits with %d: %s", code, stderr)
			}
			if running[3].ours() {
				t.Errorf("left in a pod:\n%s", running[3].rules())
			}
			n.wantFallback(client{running[3].NetNS, running[3].addrs}, "cleaned up", cluster...)
			if diff := cmp.Diff([]string{}, n.files()); diff != "" {
				t.Errorf("files left:\n%s", diff)
			}
		})
	}
}

// ours tells whether a pod has rules of ours; iptables leaves its own empty chains.
func (p *pod) ours() bool {
	rules := p.rules()
	return strings.Contains(rules, "neardns") || strings.Contains(rules, "NEARDNS")
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
		text, err := os.ReadFile(n.path("cni-cache/results/pods-" + p.container() + "-eth0"))
		if err != nil {
			t.Fatal(err)
		}
		path := n.path("cni-cache/results/pods-" + name + "-eth0")
		testutil.Must(t, os.WriteFile(path, text, 0o600))
		n.rewrite(path, func(f object) { f["containerId"] = name; change(f) })
		old := time.Now().Add(-time.Hour)
		testutil.Must(t, os.Chtimes(path, old, old))
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
	n.awaitLog(0, "its netns is that of")
	files, err := filepath.Glob(filepath.Join(n.stateDir(), "pods", "*.json"))
	if err != nil || len(files) != 2 {
		t.Errorf("files: %v %v, want those of two pods", files, err)
	}
	if f, err := podfile.Read(podfile.Path(n.stateDir(), mine.container(), "eth0")); err != nil || f.Adopted != "" {
		t.Errorf("the plugin's own: %+v, %v", f, err)
	}
	// An attachment whose file is gone was taken down, by whatever list.
	testutil.Must(t, os.Remove(n.path("cni-cache/results/pods-same-everything-eth0")))
	testutil.Must(t, os.Rename(n.path("cni-cache/results/pods-"+living.container()+"-eth0"), n.path("kept")))
	testutil.Eventually(t, func() error {
		if exists(podfile.Path(n.stateDir(), living.container(), "eth0")) || living.rules() != "" {
			return fmt.Errorf("still adopted")
		}
		return nil
	})
	// One that comes is adopted while the agent runs, and a cache that is not there says nothing of anybody.
	testutil.Must(t, os.Rename(n.path("kept"), n.path("cni-cache/results/pods-"+living.container()+"-eth0")))
	testutil.Eventually(t, func() error { return living.adopted(podfile.Steered) })
	testutil.Must(t, os.Rename(n.path("cni-cache"), n.path("away")))
	n.hup()
	n.wantSteered(living.client(), "without a cache", n.all()...)
	if err := living.adopted(podfile.Steered); err != nil {
		t.Error(err)
	}
}

// A policy that keeps a running pod from the agent costs it no question: it is tried before it is steered.
func TestAdoptBehindPolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{attach: testutil.PTP, proven: true, adopt: true})
	p, free := n.addRunningPods(1, nil)[0], n.addRunningPods(1, nil)[0]
	n.Host.RunInput("table inet blocked {\n chain in {\n type filter hook prerouting priority -500\n ip saddr "+p.addr(true).String()+
		" ip daddr 169.254.20.11 drop\n }\n}\n", "nft", "-f", "-")
	end := load{from: p.NetNS, server: n.Service(true), qps: 50, sockets: 5, names: []string{"a.default.svc.cluster.local"}}.begin(t)
	n.startAgent()
	testutil.Eventually(t, func() error { return free.adopted(podfile.Steered) })
	n.awaitLog(0, "running pod not steered")
	if err := p.adopted(podfile.Pending); err != nil {
		t.Error(err)
	}
	got := end()
	t.Log(got)
	if got.lost() > 0 || got.sent == 0 {
		t.Errorf("the pod behind the policy: %s", got)
	}
	if rules := p.rules(); rules != "" {
		t.Errorf("rules in it:\n%s", rules)
	}
}

// TestAdoptUnderLoad: 50 pods ask 500 questions a second, over sockets and connections that stay, while the agent comes, is killed
// half-way, comes back, and pods end; then neardns is taken off the node.
func TestAdoptUnderLoad(t *testing.T) {
	const count, perPod = 50, 10
	n := newNode(t, setup{attach: testutil.PTP, proven: true, adopt: true})
	pods := n.addRunningPods(count, nil)
	ending, staying := pods[:10], pods[10:]
	stop, stopEnding := make(chan struct{}), make(chan struct{})
	results := make([]outcome, count)
	var wg, ended sync.WaitGroup
	endEnding := sync.OnceFunc(func() {
		close(stopEnding)
		ended.Wait()
	})
	end := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(endEnding)
	t.Cleanup(end)
	for i, p := range pods {
		group, until := &wg, stop
		if i < len(ending) {
			group, until = &ended, stopEnding
		}
		group.Go(func() {
			names := []string{"a.default.svc.cluster.local", "b.default.svc.cluster.local", fmt.Sprintf("own%d.default.svc.cluster.local", i)}
			results[i] = load{from: p.NetNS, server: n.Service(true), qps: perPod, sockets: 2, names: names}.run(t, until)
		})
	}
	traffic := n.startTraffic(staying[0], freshName(), 26) // and over TCP
	traffic.more(26)

	// The agent is killed as soon as the first pod is steered: others have a file, some have none.
	n.launchAgent()
	testutil.Eventually(t, func() error { return staying[0].adopted(podfile.Steered) })
	killed := time.Now()
	n.agent.Kill()
	<-n.agent.Exited()
	dead := time.Now()
	half := n.steeredOf(pods)
	begun := time.Now()
	n.launchAgent()
	var ready, took time.Duration
	var watched sync.WaitGroup
	watched.Go(func() {
		for time.Since(begun) < patience {
			if a, err := n.askAgent(); err == nil && a.Ready {
				break
			}
			<-time.After(20 * time.Millisecond)
		}
		ready = time.Since(begun)
		for n.steeredOf(staying) < len(staying) && time.Since(begun) < patience {
			<-time.After(20 * time.Millisecond)
		}
		took = time.Since(begun)
	})
	endEnding()
	for i, p := range ending {
		p.delBy(i%2 == 0)
		if i%3 == 0 {
			p.Delete()
		}
	}
	watched.Wait()
	t.Logf("%d pods were steered when the agent was killed; the next one served after %v, all %d were steered after %v", half,
		ready.Round(time.Millisecond), len(staying), took.Round(time.Millisecond))
	// How long a process takes to start is the machine's affair.
	if bound := adoptedWithin*testutil.Slowness() + slack; n.steeredOf(staying) < len(staying) || took-ready > bound {
		t.Errorf("%d of %d pods are steered %v after the agent serves, want all within %v", n.steeredOf(staying), len(staying), took-ready, bound)
	}
	n.awaitReady()
	traffic.more(52)
	for _, p := range ending {
		testutil.Eventually(t, func() error {
			if exists(podfile.Path(n.stateDir(), p.container(), "eth0")) {
				return fmt.Errorf("%s, which ended, has a file", p.name)
			}
			return nil
		})
	}
	n.wantSteered(staying[1].client(), "adopted", n.all()...)
	testutil.Must(t, n.agent.Terminate(patience))
	if code, _, stderr := n.cleanup(); code != 0 {
		t.Fatalf("cleanup exits with %d: %s", code, stderr)
	}
	traffic.more(26)
	end()
	asked, lost, _ := traffic.end()
	var all outcome
	waited := slack / 10 // what came before the kill and waited for the agent to get CPU time is lost with it: as long as an answer took
	for _, got := range results {
		all.sent, all.answered, all.wrong = all.sent+got.sent, all.answered+got.answered, all.wrong+got.wrong
		all.unanswered = append(all.unanswered, got.unanswered...)
		waited = max(waited, got.percentile(100))
	}
	t.Logf("sent %d, lost %d, wrong %d, slowest %v; over connections that stay, too: %d asked, %d lost", all.sent, all.lost(), all.wrong,
		waited.Round(time.Millisecond), asked, lost)
	// A kill costs the questions that come until the kernel has ended the process (D-016); nothing else may cost one.
	for _, at := range all.unanswered {
		if at.Before(killed.Add(-waited)) || at.After(dead.Add(slack/10)) {
			t.Errorf("a question is lost %v after the kill, which took %v", at.Sub(killed).Round(time.Millisecond), dead.Sub(killed).Round(time.Millisecond))
		}
	}
	traffic.lostAround(killed, dead)
	if all.wrong > 0 || all.sent < 500 {
		t.Errorf("%d wrong answers of %d", all.wrong, all.sent)
	}
	for _, p := range staying {
		if rules := p.rules(); rules != "" {
			t.Errorf("left in %s:\n%s", p.name, rules)
		}
		a, err := testutil.Ask(p.NetNS, n.Service(true), freshName(), dns.TypeA, "udp", testutil.AskOptions{Timeout: time.Second})
		if err != nil || !p.client().direct(a) {
			t.Errorf("%s after cleanup: %v, %v", p.name, a, err)
		}
	}
	if diff := cmp.Diff([]string{}, n.files()); diff != "" {
		t.Errorf("files left:\n%s", diff)
	}
}

// steeredOf is how many of the pods are steered.
func (n *node) steeredOf(pods []*pod) (steered int) {
	for _, p := range pods {
		if p.adopted(podfile.Steered) == nil {
			steered++
		}
	}
	return steered
}
