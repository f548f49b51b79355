package steering

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// successor starts a second agent next to the running one. Its pod's folder marks it as newer.
func (n *node) successor(pod string) *testutil.Process {
	n.t.Helper()
	testutil.Must(n.t, os.MkdirAll(n.path(pod), 0o700))
	return n.Host.StartAgent(n.nodeCommand("--pod-dir", n.path(pod))...)
}

// succeed hands the node over to a successor, and waits until the old agent has ended.
func (n *node) succeed(pod string) (old *testutil.Process) {
	n.t.Helper()
	old, n.agent = n.agent, n.successor(pod)
	testutil.Eventually(n.t, func() error { return n.ready(pod) })
	n.awaitExit(old, 0)
	return old
}

// ready is what the kubelet learns about one pod's agent.
func (n *node) ready(pod string) error {
	n.t.Helper()
	code, out, stderr := n.run("ready", "--pod-dir", n.path(pod))
	return testutil.ErrorIf(code != 0, "exit code %d: %s%s", code, out, stderr)
}

func (n *node) awaitExit(p *testutil.Process, code int) {
	n.t.Helper()
	if got := p.ExitCode(testutil.Patience()); got != code {
		n.t.Errorf("exit code %d, want %d:\n%s", got, code, p.Output())
	}
}

// TestSuccessors rolls three agents over one another while queries come, as a DaemonSet with maxSurge does: every query is answered, the
// cache goes along, and the leases stand.
func TestSuccessors(t *testing.T) {
	n, p := newServed(t, setup{families: testutil.Dual})
	n.wantSteered(p.client(), "up", n.all()...)
	f := n.startTraffic(p, freshName(), 130)
	for i := range 3 {
		f.more(40)
		cached, at := freshName(), n.all()[0] // for 30 s
		var first *testutil.Answer
		testutil.Eventually(t, func() (err error) { // no agent on a busy machine, which has lost a lease: then kube-dns answers
			first, err = p.client().ask(at, cached, testutil.Attempt)
			return errors.Join(err, testutil.ErrorIf(err == nil && p.client().direct(first), "kube-dns answers"))
		})
		old := n.succeed(fmt.Sprintf("pod%d", i+1))
		testutil.Eventually(t, func() error {
			a, from := n.status().Agent, fmt.Sprintf("process %d ", old.PID())
			wrong := a == nil || !a.Ready || a.Handover == nil || !strings.Contains(a.Handover.From, from)
			return testutil.ErrorIf(wrong, "status after the handover: %+v", a)
		})
		n.wantNoFaults()
		testutil.Eventually(t, func() error { // kube-dns gives each answer another serial
			again, err := p.client().ask(at, cached, testutil.Attempt)
			if err == nil && again.Serial != first.Serial {
				err = fmt.Errorf("answer %d, the predecessor's cache had %d", again.Serial, first.Serial)
			}
			return err
		})
	}
	f.more(40)
	f.allAnswered()
	n.wantSteered(p.client(), "after three handovers", n.all()...)
}

// TestEndAndStart ends the agent and starts it again, by SIGTERM and by SIGKILL: kube-dns answers, and then the agent again. One that is
// terminated leaves no query without an answer.
func TestEndAndStart(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(map[bool]string{false: "terminated", true: "killed"}[killed], func(t *testing.T) {
			n, p := newServed(t, setup{families: testutil.Dual})
			f := n.startTraffic(p, freshName(), 130)
			f.more(50)
			if killed {
				n.agent.Kill()
				f.result() // a query that the agent had is lost with it; make faults counts them
			} else {
				testutil.Must(t, n.agent.Terminate(testutil.Patience()))
			}
			for _, at := range n.all() {
				testutil.Eventually(t, func() error { return p.client().fellBack(at, testutil.Attempt) })
			}
			n.startAgent()
			n.wantSteered(p.client(), "started again", n.all()...)
			if !killed {
				f.more(50)
				f.allAnswered()
			}
		})
	}
}

// TestWhoMayTakeOver: a plain second start does not, nor does a container that is started again in an older pod; who is
// told to does; and no cleanup runs under a running agent.
func TestWhoMayTakeOver(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual})
	n.succeed("older")
	n.succeed("newer")
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
	refused("an older pod", []string{"the active agent's pod is not older: it started "}, append(plain, "--pod-dir", n.path("older"))...)
	refused("the same pod", []string{"is not older"}, append(plain, "--pod-dir", n.path("newer"))...)
	// Another state folder has no lock of the first one's: the sockets tell.
	n.write("other.yaml", strings.NewReplacer(n.stateDir(), n.path("other-run"), n.persistDir(), n.path("other-lib")).Replace(n.read("node.yaml")))
	if code, _, stderr := n.run("node", "--config", n.path("other.yaml")); code != 3 || !strings.Contains(stderr, fmt.Sprintf("process %d", n.agent.PID())) {
		t.Errorf("another state folder: exit code %d, want 3 and process %d named:\n%s", code, n.agent.PID(), stderr)
	}
	refused("cleanup", []string{"stop it first"}, "cleanup", "--config", n.configFile(), "--cni-conf", n.path("net.d"))
	testutil.Equal(t, "the node was changed", before, n.static())
	n.wantSteered(p.client(), "after who may not", n.all()...)

	old := n.agent
	n.agent = n.Host.StartAgent(append([]string{made.Path("neardns-agent")}, append(plain, "--take-over")...)...)
	n.awaitExit(old, 0)
	n.awaitReady()
	n.prints(anyCode, "status", fmt.Sprintf("taken over from process %d (", old.PID()))
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
	n.startAgent()
	f := n.startTraffic(p, freshName(), 260)
	n.configure(fmt.Sprintf("redirects: [%s, %s]\n", n.ClusterDNS()[0], second))
	n.write("node.yaml", strings.Replace(n.read("node.yaml"), fmt.Sprintf("- %q\n", local4), "- \"169.254.20.9\"\n", 1))
	n.succeed("pod1")
	n.awaitReady()
	f.allAnswered()
	n.wantSteered(p.client(), "taken over", target{n.ClusterDNS()[0], "udp"}, target{n.ClusterDNS()[0], "tcp"})
	want := []string{"169.254.20.9 tcp", "169.254.20.9 udp", "169.254.20.11 tcp", "169.254.20.11 udp", "169.254.20.12 tcp", "169.254.20.12 udp"}
	n.awaitStatus(func(a *agentStatus) error {
		var got []string
		for _, l := range a.Leases {
			got = append(got, l.Address.String()+" "+l.Protocol)
		}
		return testutil.ErrorIf(!slices.Equal(got, want), "leases %v", got)
	})
}

// The steps of a handover, by the log of the active agent.
var handoverSteps = []string{"handover begins", "successor serves on the same sockets", "the successor has taken the node over"}

// awaitStep waits until the active agent's log has a step of a handover.
func (n *node) awaitStep(from int, step string, next *testutil.Process) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		return testutil.ErrorIf(!strings.Contains(n.agent.Output()[from:], step), "no %q:\n%s", step, next.Output())
	})
}

// TestStoppedWithinAHandover freezes either process (SIGSTOP) after each step of a handover. Pods are answered all the same, and once it
// goes on, the successor has the node.
func TestStoppedWithinAHandover(t *testing.T) {
	n, p := newServed(t, setup{families: testutil.IPv4})
	for i := range 2 * len(handoverSteps) {
		old, step, pod := n.agent, handoverSteps[i/2], fmt.Sprintf("pod%d", i+1)
		from := len(old.Output())
		next := n.successor(pod)
		which, frozen := old, "the active agent"
		if i%2 == 1 {
			which, frozen = next, "the successor"
		}
		n.awaitStep(from, step, next)
		which.Signal(unix.SIGSTOP) // an active agent that has ended meanwhile takes none
		for _, at := range n.all() {
			testutil.Eventually(t, func() error {
				_, err := p.client().ask(at, freshName(), retry)
				return wrap(frozen+" stopped at "+step, err)
			})
		}
		which.Cont()
		n.agent = next
		testutil.Eventually(t, func() error {
			err := n.ready(pod)
			return testutil.ErrorIf(err != nil, "%w\n%s\n%s", err, old.Output(), next.Output())
		})
		n.awaitExit(old, 0)
		n.wantSteered(p.client(), frozen+" stopped at "+step, n.all()...)
	}
}

// TestHolderDiesWithinAHandover: a holder that is frozen when it is asked, and killed then, leaves the node to who waits.
func TestHolderDiesWithinAHandover(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual})
	n.agent.Stop()
	next := n.successor("pod1")
	testutil.Eventually(t, func() error {
		return testutil.ErrorIf(!strings.Contains(next.Output(), "takeover failed; retried"), "the successor does not wait:\n%s", next.Output())
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

// TestSuccessorDies kills the successor within the steps of a handover. If it does not have the node by then, the active agent goes on, and
// keeps none of its dead successors' descriptors.
func TestSuccessorDies(t *testing.T) {
	n, p := newServed(t, setup{families: testutil.IPv4})
	files := n.openFiles()
	for i, step := range []string{"handover begins", "successor serves on the same sockets", "handed over", "handover begins", "successor serves on the same sockets"} {
		from := len(n.agent.Output())
		next := n.successor(fmt.Sprintf("pod%d", i+1))
		n.awaitStep(from, step, next)
		next.Kill()
		var goesOn bool
		testutil.Eventually(t, func() error { // which of both it is, the kill's moment decides
			log := n.agent.Output()[from:]
			taken := strings.Contains(log, "handed over to the successor") || strings.Contains(log, "the successor has taken the node over")
			// A busy machine may fail one try, after which the successor tries again.
			goesOn = !taken && strings.Count(log, "this agent keeps the node") >= strings.Count(log, "handover begins")
			return testutil.ErrorIf(!goesOn && !taken, "killed at %q, and the active agent does not end the handover:\n%s", step, log)
		})
		if goesOn {
			t.Logf("killed at %q, the active agent goes on", step)
		} else {
			t.Logf("killed at %q, after the successor had the node", step)
			n.awaitExit(n.agent, 0)
			n.agent = n.successor(fmt.Sprintf("again%d", i+1))
		}
		n.awaitReady()
		n.wantSteered(p.client(), "successor killed", n.all()...)
	}
	testutil.Eventually(t, func() error {
		now := n.openFiles()
		return testutil.ErrorIf(now > files+8, "%d files are open, %d were when the first agent began", now, files)
	})
}

// openFiles counts the agent's descriptors.
func (n *node) openFiles() int {
	n.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.agent.PID()))
	testutil.Must(n.t, err)
	return len(all)
}

// TestOpenTCPConnections: connections that the agent serves outlive a lapsed lease, with the queries sent meanwhile. At the agent's end they
// end in good order, behind the answers in flight.
func TestOpenTCPConnections(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual, config: calm})
	var conns []*testutil.Conn
	for _, a := range append(n.ClusterDNS(), n.locals()...) {
		conns = append(conns, n.dial(p, target{a, "tcp"}))
		_, err := conns[len(conns)-1].Send(freshName(), dns.TypeA) // without a first query, a connection is closed after 3 s
		testutil.Check(t, err)
	}
	send := func(label string) (sent []string) {
		for _, c := range conns {
			name := label + freshName()
			_, err := c.Send(name, dns.TypeA)
			testutil.Check(t, err, name)
			sent = append(sent, name)
		}
		return sent
	}
	receive := func(when string) {
		t.Helper()
		for _, c := range conns {
			a, err := c.Receive()
			testutil.Must(t, wrap(when, err))
			testutil.Check(t, rightData(a), when)
			if p.client().direct(a) {
				t.Errorf("%s: %s is not the agent's answer", when, a)
			}
		}
	}
	receive("served")
	n.lapse(func() { send("") })
	receive("sent to a stopped agent")
	send("")
	receive("after the lease lapsed")
	n.awaitReady()
	for _, name := range send("delay-500.") {
		testutil.Eventually(t, func() error { return testutil.ErrorIf(n.DNS.Asked(name) == 0, "kube-dns got no query for %s", name) })
	}
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))
	receive("in flight at SIGTERM")
	for _, c := range conns {
		if _, err := c.Receive(); !errors.Is(err, io.EOF) {
			t.Errorf("a connection at the agent's end: %v, want the end of file", err)
		}
	}
}
