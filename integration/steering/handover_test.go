package steering

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// successor starts a second agent beside the running one. Its pod's folder marks it as newer.
func (n *node) successor(pod string, args ...string) *testutil.Process {
	n.t.Helper()
	dir := n.path(pod)
	testutil.Must(n.t, os.MkdirAll(dir, 0o700))
	return n.Host.Start(n.agentCommand(append([]string{"node", "--config", n.configFile(), "--pod-dir", dir}, args...)...)...)
}

// ready is what the kubelet is told of one pod's agent.
func (n *node) ready(pod string) error {
	n.t.Helper()
	code, out, stderr := n.run("ready", "--pod-dir", n.path(pod))
	if code != 0 {
		return fmt.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	return nil
}

func (n *node) awaitExit(p *testutil.Process, code int) {
	n.t.Helper()
	if got := p.ExitCode(patience); got != code {
		n.t.Errorf("exit code %d, want %d:\n%s", got, code, p.Output())
	}
}

// TestSuccessorLosesNothing rolls three agents over one another under load, as a DaemonSet with maxSurge does.
func TestSuccessorLosesNothing(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual, config: calm})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	n.wantSteered(p.client(), "up", n.all()...)
	if err := n.ready("pod0"); err != nil {
		t.Error(err)
	}

	hot, begun := freshName(), time.Now()
	f := n.startTraffic(p, hot, 500)
	f.more(1)
	for i := range 3 {
		old := n.agent
		pod := fmt.Sprintf("pod%d", i+1)
		n.agent = n.successor(pod)
		testutil.Eventually(t, func() error { return n.ready(pod) })
		n.awaitExit(old, 0)
		s := n.status()
		if s.Agent == nil || !s.Agent.Ready || s.Agent.Handover == nil || !strings.Contains(s.Agent.Handover.From, fmt.Sprintf("process %d ", old.PID())) {
			t.Errorf("status after the hand-over: %+v", s.Agent)
		}
		if s.Agent != nil && s.Agent.Handover != nil {
			t.Logf("handed over in %s", s.Agent.Handover.Took)
		}
		if text := n.agent.Output(); strings.Contains(text, "level=ERROR") {
			t.Errorf("the successor has faults:\n%s", text)
		}
	}
	asked, lost, gap := f.end()
	t.Logf("%d questions, %d lost, longest gap %v", asked, lost, gap)
	if lost > 0 || asked < 200 {
		t.Errorf("%d of %d questions lost", lost, asked)
	}
	if times, kept := n.DNS.Asked(hot), time.Since(begun)/(20*time.Second); times > 1+int(kept) { // its TTL is 30 s
		t.Errorf("kube-dns was asked %d times for the one name: the cache did not go along, or a question fell back", times)
	}
	n.wantSteered(p.client(), "after three hand-overs", n.all()...)
}

// TestEndAndStart ends the agent under load and starts it again, by SIGTERM and by SIGKILL.
func TestEndAndStart(t *testing.T) {
	for name, end := range map[string]func(p *testutil.Process){
		"terminated": func(p *testutil.Process) {
			if err := p.Terminate(patience); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
		},
		"killed": (*testutil.Process).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, setup{families: testutil.Dual})
			p := n.addPod(nil)
			n.startAgent()
			f := n.startTraffic(p, freshName(), 260)
			f.more(100)
			begun := time.Now()
			end(n.agent)
			ended := time.Now()
			f.more(200)
			n.startAgent()
			f.more(200)
			asked, lost, gap := f.end()
			t.Logf("%d questions, %d lost, longest gap %v", asked, lost, gap)
			if name == "killed" {
				f.lostAround(begun, ended)
			} else if lost > 0 {
				t.Errorf("%d of %d questions lost", lost, asked)
			}
			n.wantSteered(p.client(), "started again", n.all()...)
		})
	}
}

// TestWhoMayTakeOver: a plain second start does not, nor does a container that is started again in an older pod; who is
// told to does; and nobody cleans up under a running agent.
func TestWhoMayTakeOver(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual})
	p := n.addPod(nil)
	first := n.successor("older")
	n.agent = first
	n.awaitReady()
	n.agent = n.successor("newer")
	n.awaitExit(first, 0)
	n.awaitReady()
	before := n.static()

	refused := func(what string, want []string, args ...string) {
		t.Helper()
		code, _, stderr := n.run(args...)
		if code != 3 {
			t.Errorf("%s: exit code %d, want 3", what, code)
		}
		for _, w := range append(want, fmt.Sprintf("process %d (version ", n.agent.PID()), "since 20") {
			if !strings.Contains(stderr, w) {
				t.Errorf("%s: %q is missing in:\n%s", what, w, stderr)
			}
		}
	}
	plain := []string{"node", "--config", n.configFile()}
	refused("a plain start", []string{"stop it first, or start with --take-over"}, plain...)
	refused("an older pod", []string{"it is newer: its pod began "}, append(plain, "--pod-dir", n.path("older"))...)
	refused("the same pod", []string{"it is newer"}, append(plain, "--pod-dir", n.path("newer"))...)
	refused("cleanup", []string{"stop it first"}, "cleanup", "--config", n.configFile(), "--cni-conf", n.path("net.d"))
	if diff := cmp.Diff(before, n.static()); diff != "" {
		t.Errorf("the node was changed (-before +after):\n%s", diff)
	}
	n.wantSteered(p.client(), "after who may not", n.all()...)

	old := n.agent
	n.agent = n.Host.Start(append([]string{made.Path("neardns-agent")}, append(plain, "--take-over")...)...)
	n.awaitExit(old, 0)
	n.awaitReady()
	if _, text, _ := n.run("status", "--config", n.configFile()); !strings.Contains(text, fmt.Sprintf("taken over from process %d (", old.PID())) {
		t.Errorf("status does not tell of it:\n%s", text)
	}
	n.wantSteered(p.client(), "told to take over", n.all()...)
}

// TestSuccessorWithOtherAddresses: the successor's configuration has lost a local address and got a redirect. What both
// have is never without an answer from the cache; what is new comes once the link is the successor's.
func TestSuccessorWithOtherAddresses(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.IPv4})
	second := netip.MustParseAddr("10.96.0.11")
	testutil.InstallProxy(t, n.Host, n.setup.proxy, append(testutil.DNSService(n.ClusterDNS()[0], n.KubeDNSAddrs()[0]), testutil.DNSService(second, n.KubeDNSAddrs()[0])...)...)
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	f := n.startTraffic(p, freshName(), 260)
	n.configure(fmt.Sprintf("redirects: [%s, %s]\n", n.ClusterDNS()[0], second))
	n.write("node.yaml", strings.Replace(n.read("node.yaml"), fmt.Sprintf("- %q\n", local4), "- \"169.254.20.9\"\n", 1))
	old := n.agent
	n.agent = n.successor("pod1")
	n.awaitExit(old, 0)
	n.awaitReady()
	asked, lost, gap := f.end()
	t.Logf("%d questions, %d lost, longest gap %v", asked, lost, gap)
	if lost > 0 {
		t.Errorf("%d of %d questions lost", lost, asked)
	}
	n.wantSteered(p.client(), "taken over", target{n.ClusterDNS()[0], "udp"}, target{n.ClusterDNS()[0], "tcp"})
	var got []string
	for _, l := range n.status().Agent.Leases {
		got = append(got, l.Address.String()+" "+l.Protocol)
	}
	want := []string{"169.254.20.9 tcp", "169.254.20.9 udp", "169.254.20.11 tcp", "169.254.20.11 udp", "169.254.20.12 tcp", "169.254.20.12 udp"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("leases (-want +got):\n%s", diff)
	}
}

// TestStoppedWithinAHandover freezes either process (SIGSTOP) at moments all over a hand-over, lets it go on, and expects the
// node with one of them in the end. What is lost is bounded by the lease's lifetime.
func TestStoppedWithinAHandover(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	const rate = 260
	for i := range 6 {
		old := n.agent
		pod := fmt.Sprintf("pod%d", i+1)
		f, pauses := n.startTraffic(p, freshName(), rate), n.pauses(p.NetNS)
		f.more(20)
		next := n.successor(pod)
		which, who := old, "the holder"
		if i%2 == 1 {
			which, who = next, "the successor"
		}
		// Not a wait for anything: the moment is what is tried. A start takes some 40 ms to the first message.
		moment := time.Duration(25+8*i) * time.Millisecond
		<-time.After(moment)
		which.Stop()
		<-time.After(1500 * time.Millisecond)
		which.Cont()
		n.agent = next
		testutil.Eventually(t, func() error {
			if err := n.ready(pod); err != nil {
				return fmt.Errorf("%w\n%s\n%s", err, old.Output(), next.Output())
			}
			return nil
		})
		n.awaitExit(old, 0)
		asked, lost, gap := f.end()
		t.Logf("%s stopped after %v: %d questions, %d lost, longest gap %v", who, moment, asked, lost, gap)
		if most := int64(rate); lost > most || gap > lifetime+slack+pauses() {
			t.Errorf("%s stopped after %v: %d lost of %d, longest gap %v", who, moment, lost, asked, gap)
		}
		n.wantSteered(p.client(), who+" stopped", n.all()...)
	}
}

// TestHolderDiesWithinAHandover: a holder that is frozen when it is asked, and killed then, leaves the node to who waits.
func TestHolderDiesWithinAHandover(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	n.agent.Stop()
	next := n.successor("pod1")
	testutil.Eventually(t, func() error {
		if !strings.Contains(next.Output(), "not taken over, will be tried again") {
			return fmt.Errorf("the successor does not wait:\n%s", next.Output())
		}
		return nil
	})
	if !strings.Contains(next.Output(), fmt.Sprintf("process %d (version", n.agent.PID())) {
		t.Errorf("the successor does not name the holder:\n%s", next.Output())
	}
	n.wantFallback(p.client(), "the holder is stopped, its successor waits", n.all()...)
	n.agent.Kill()
	n.agent = next
	n.awaitReady()
	n.wantSteered(p.client(), "the holder was killed", n.all()...)
}

// TestSuccessorDies kills the successor within the steps of a hand-over. Whoever has the node then goes on with it, and a
// holder keeps none of its dead successors' descriptors.
func TestSuccessorDies(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4})
	p := n.addPod(nil)
	n.agent = n.successor("pod0")
	n.awaitReady()
	files := n.openFiles()
	for i, step := range []string{"hand-over begins", "successor serves beside us", "handed over", "hand-over begins", "successor serves beside us"} {
		f, pauses := n.startTraffic(p, freshName(), 260), n.pauses(p.NetNS)
		f.more(20)
		from := len(n.agent.Output())
		next := n.successor(fmt.Sprintf("pod%d", i+1))
		testutil.Eventually(t, func() error {
			if !strings.Contains(n.agent.Output()[from:], step) {
				return fmt.Errorf("no %q:\n%s", step, next.Output())
			}
			return nil
		})
		begun := time.Now()
		next.Kill()
		within := int64(260 * time.Since(begun).Seconds()) // what came until the kernel had ended it (D-016)
		f.more(100)
		had := "before it had the node"
		select {
		case <-n.agent.Exited():
			had = "after it had taken the node over"
			n.agent = n.successor(fmt.Sprintf("again%d", i+1))
		case <-time.After(patience / 5): // one that has handed over ends within that time
		}
		n.awaitReady()
		asked, lost, gap := f.end()
		t.Logf("killed at %q, %s: %d questions, %d lost, longest gap %v", step, had, asked, lost, gap)
		if lost > 20+within || gap > lifetime+slack+pauses() {
			t.Errorf("killed at %q, %s: %d of %d questions lost, longest gap %v", step, had, lost, asked, gap)
		}
		n.wantSteered(p.client(), "successor killed", n.all()...)
	}
	testutil.Eventually(t, func() error {
		if now := n.openFiles(); now > files+8 {
			return fmt.Errorf("%d files are open, %d were when the first agent began", now, files)
		}
		return nil
	})
}

// openFiles counts the agent's descriptors.
func (n *node) openFiles() int {
	n.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.agent.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(all)
}
