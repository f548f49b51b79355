package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// newTransparentNode is a node without kube-proxy: eBPF of the tests' own translates. Pods have no plugin of ours.
func newTransparentNode(t *testing.T, s setup) *node {
	t.Helper()
	testutil.RequireRoot(t)
	s.transparent, s.proxy, s.config = true, testutil.NoProxy, kernelOn(t)
	return newNode(t, s)
}

// datapath is how an eBPF datapath brings pods' queries to kube-dns. begin makes a pod of it.
type datapath struct {
	name  string
	begin func(n *node) *pod
}

// datapaths are the two ways: at pods' sockets, before there is a packet, and at pods' links. The host's own sockets are translated in
// both.
func datapaths() []datapath {
	return []datapath{
		{"at sockets", func(n *node) *pod {
			p := n.addOldPod()
			translateAtSockets(n.t, n.pairs(), n.Host, p.NetNS)
			return p
		}},
		{"at links", func(n *node) *pod {
			p := n.addOldPod()
			translateAtSockets(n.t, n.pairs(), n.Host)
			translateAtLink(n.t, n.Host, p.hostLink(n), n.pairs())
			return p
		}},
	}
}

func (n *node) pairs() (out []pair) {
	for i, a := range n.ClusterDNS() {
		out = append(out, pair{a, n.KubeDNSAddrs()[i]})
	}
	return out
}

// TestTransparent: next to each kind of datapath hits are answered at the pod's link, by connected and by other sockets, as kube-dns
// answers them. Nothing is laid in the pod or on the host, and what is no hit is kube-dns's, TCP among it.
func TestTransparent(t *testing.T) {
	for _, d := range datapaths() {
		t.Run(d.name, func(t *testing.T) { hitsBeside(t, d) })
	}
}

func hitsBeside(t *testing.T, d datapath) {
	t.Helper()
	n := newTransparentNode(t, setup{families: testutil.Dual})
	p := d.begin(n)
	n.awaitKubeDNS(p)
	n.launchAgent()
	n.wantInKernel(1, 0)
	for _, a := range n.ClusterDNS() {
		at := target{a, "udp"}
		name := freshName()
		n.heat(p, at, name)
		before, asked := n.kernelAnswers(), n.DNS.Asked(name)
		const questions = 100
		connected := n.dial(p, at)
		for i := range questions {
			var answer *testutil.Answer
			var err error
			if i%2 == 0 {
				answer, err = connected.Ask(name, dns.TypeA)
			} else { // from a socket that is not connected, as musl does
				answer, err = testutil.Ask(p.NetNS, at.server(), name, dns.TypeA, "udp", testutil.AskOptions{})
			}
			if err != nil || len(answer.Msg.Answer) != 1 {
				t.Fatalf("query %d: %v, %v", i, answer, err)
			}
		}
		if got := n.kernelAnswers() - before; got < questions/2 || got > questions { // the others are samples, by the clock
			t.Errorf("%s: the kernel answered %d of %d", at, got, questions)
		}
		if more := n.DNS.Asked(name) - asked; more > questions/2 {
			t.Errorf("%s: kube-dns was asked %d times", at, more)
		}
		before, asked = n.kernelAnswers(), n.DNS.Asked(name)
		for range 10 {
			if _, err := p.client().ask(target{a, "tcp"}, name, testutil.Attempt); err != nil {
				t.Error("over TCP: ", err)
			}
		}
		if n.kernelAnswers() != before || n.DNS.Asked(name)-asked < 10 {
			t.Errorf("%s: of 10 questions over TCP kube-dns had %d", at, n.DNS.Asked(name)-asked)
		}
	}
	n.reload(n.setup.config+"cache: {memoryMiB: 16}\n", true)
	n.wantNothingLaid(p)
	for _, result := range []string{"first", "fetched"} {
		if n.metric(`neardns_kernel_copies_total{result="`+result+`"}`) == 0 {
			t.Errorf("no copy counts as %s", result)
		}
	}
	n.prints(anyCode, "status", "arrangement: transparent", n.KubeDNSAddrs()[0].String())
	n.prints(cli.Good, "doctor", "transparent")
}

// awaitKubeDNS waits until a pod is answered over each family, by the datapath alone.
func (n *node) awaitKubeDNS(p *pod) {
	n.t.Helper()
	for _, a := range n.ClusterDNS() {
		testutil.Eventually(n.t, func() error {
			_, err := p.client().ask(target{a, "udp"}, freshName(), time.Second*testutil.Slowness())
			return err
		})
	}
}

// wantNothingLaid fails where there are rules in a pod, or links and rules of ours on the host.
func (n *node) wantNothingLaid(p *pod) {
	n.t.Helper()
	if rules := p.Run("nft", "list", "ruleset"); strings.TrimSpace(rules) != "" {
		n.t.Errorf("rules in the pod:\n%s", rules)
	}
	if rules := n.Host.Run("nft", "list", "ruleset"); strings.Contains(rules, "neardns") {
		n.t.Errorf("rules on the host:\n%s", rules)
	}
	if n.hasLink("neardns0") {
		n.t.Error("there is a link neardns0")
	}
}

// TestTransparentFaults: next to each kind of datapath, with the agent never there, killed, hung and there again, no query under load is
// lost, of names that the kernel has and of others. What a dead or hung agent left ends, and kube-dns answers.
func TestTransparentFaults(t *testing.T) {
	for _, d := range datapaths() {
		t.Run(d.name, func(t *testing.T) { faultsBeside(t, d) })
	}
}

func faultsBeside(t *testing.T, d datapath) {
	t.Helper()
	n := newTransparentNode(t, setup{families: testutil.IPv4})
	p := d.begin(n)
	n.awaitKubeDNS(p)
	at := target{n.ClusterDNS()[0], "udp"}
	hot, short := freshName(), "ttl-3."+freshName()
	f := n.startUDP(p, at.server(), 100, hot, short, hot, freshName(), hot)
	f.more(100) // the agent was never there
	n.launchAgent()
	n.wantInKernel(1, 0)
	n.awaitHits()
	n.agent.Kill()
	n.awaitAsked(short)
	n.launchAgent()
	n.wantInKernel(1, 0)
	n.awaitHits()
	n.agent.Stop()
	n.awaitAsked(short)
	n.agent.Cont()
	n.awaitHits()
	testutil.Check(t, n.agent.Terminate(testutil.Patience()))
	n.awaitAsked(short)
	f.allAnswered()
	n.prints(cli.Good, n.cleanup())
	if left := n.pinned(); len(left) > 0 {
		t.Errorf("cleanup left %s", left)
	}
	n.awaitKubeDNS(p)
}

// awaitHits waits until the kernel answers what a load queries.
func (n *node) awaitHits() {
	n.t.Helper()
	before := int64(-1)
	testutil.Eventually(n.t, func() error {
		a, err := n.agentStatus()
		if err != nil || a.KernelHits == nil {
			return fmt.Errorf("status: %+v, %w", a, err)
		}
		if before < 0 {
			before = a.KernelHits.Answers
		}
		got := a.KernelHits.Answers - before
		return testutil.ErrorIf(got < 200, "%d hits", got)
	})
}

// awaitAsked waits until kube-dns gets queries for a name again and again: the kernel has no answer to it.
func (n *node) awaitAsked(name string) {
	n.t.Helper()
	before := n.DNS.Asked(name)
	testutil.Eventually(n.t, func() error {
		got := n.DNS.Asked(name) - before
		return testutil.ErrorIf(got < 40, "kube-dns was asked %d times", got)
	})
}

// TestTransparentAsksNobodyElse: a pod that queries another server is not answered for it, be it for a name that the kernel has, nor is one
// that queries the new owner of the address of a kube-dns that is gone.
func TestTransparentAsksNobodyElse(t *testing.T) {
	n := newTransparentNode(t, setup{families: testutil.IPv4, external: true})
	p := n.addOldPod()
	end := translateAtSockets(t, n.pairs(), n.Host, p.NetNS)
	n.awaitKubeDNS(p)
	n.launchAgent()
	n.wantInKernel(1, 0)
	at := target{n.ClusterDNS()[0], "udp"}
	name := freshName()
	n.heat(p, at, name)
	want := []netip.AddrPort{netip.AddrPortFrom(n.ClusterDNS()[0], 53), netip.AddrPortFrom(n.KubeDNSAddrs()[0], 53)}
	testutil.Equal(t, "answered in place of", want, n.kernelHits().Served)
	before := n.kernelAnswers()
	_, _ = p.client().ask(target{netip.MustParseAddr("198.51.100.53"), "udp"}, name, time.Second*testutil.Slowness())
	if got := n.kernelAnswers(); got != before {
		t.Error("the kernel answered in another server's place")
	}
	// kube-dns moves: what its old address answers is its new owner's from then on.
	end()
	translateAtSockets(t, []pair{{n.ClusterDNS()[0], netip.MustParseAddr("10.244.2.77")}}, n.Host)
	testutil.Eventually(t, func() error {
		served := n.kernelHits().Served
		return testutil.ErrorIf(slices.Contains(served, want[1]), "answered in place of %v", served)
	})
}

// TestTransparentPolicy: where the datapath drops a pod's queries after the program, its hits end, and another pod's do not. Without the
// policy they are back.
func TestTransparentPolicy(t *testing.T) {
	n := newTransparentNode(t, setup{families: testutil.IPv4})
	p, other := datapaths()[0].begin(n), n.addOldPod()
	translateAtSockets(t, n.pairs(), other.NetNS)
	n.awaitKubeDNS(p)
	n.launchAgent()
	n.wantInKernel(2, 0)
	at := target{n.ClusterDNS()[0], "udp"}
	name := freshName()
	n.heat(p, at, name)
	allow := chain(n.Host, "inet guard", "hook forward priority 0", fmt.Sprintf("iifname %q udp dport 53 drop", p.hostLink(n)))
	testutil.Eventually(t, func() error {
		if _, err := other.client().ask(at, name, testutil.Attempt); err != nil { // keeps the entry there
			return err
		}
		_, err := p.client().ask(at, name, retry)
		refused := n.kernelHits().Refused
		return testutil.ErrorIf(err == nil || len(refused) != 1, "answered against the policy: %t; refused: %v", err == nil, refused)
	})
	n.heat(other, at, name)
	n.wantInKernel(1, 1)
	allow()
	n.heat(p, at, name)
	n.wantInKernel(2, 0)
}

// TestTransparentIsHandedOver: agents take over from one another under load; none is lost, and the last one answers.
func TestTransparentIsHandedOver(t *testing.T) {
	n := newTransparentNode(t, setup{families: testutil.IPv4})
	p := datapaths()[0].begin(n)
	n.awaitKubeDNS(p)
	n.launchAgent()
	n.wantInKernel(1, 0)
	at := target{n.ClusterDNS()[0], "udp"}
	f := n.startUDP(p, at.server(), 100, freshName(), freshName())
	for i := range 2 {
		n.awaitHits()
		n.succeed(fmt.Sprintf("pod%d", i+1))
		n.wantInKernel(1, 0)
	}
	n.awaitHits()
	f.allAnswered()
	if a, err := n.agentStatus(); err != nil || a.Handover == nil {
		t.Errorf("no hand-over is told of: %+v, %v", a, err)
	}
}
