package steering

import (
	"errors"
	"io"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

func (n *node) dial(p *pod, at target) *testutil.Conn {
	n.t.Helper()
	c, err := testutil.Dial(p.NetNS, at.network, at.server(), testutil.AskOptions{})
	testutil.Must(n.t, err)
	n.t.Cleanup(c.Close)
	return c
}

// wantAnswers sends queries on open connections, one by one and pipelined, and checks who was queried.
func (n *node) wantAnswers(when string, p *pod, conns []*testutil.Conn, direct bool) {
	n.t.Helper()
	for _, c := range conns {
		single, err := c.Ask(freshName(), dns.TypeA)
		if err != nil {
			n.t.Errorf("%s: %v", when, err)
			continue
		}
		many, err := c.Pipeline(dns.TypeA, freshName(), freshName(), freshName(), freshName(), freshName())
		if err != nil {
			n.t.Errorf("%s, pipelined: %v", when, err)
			continue
		}
		for _, a := range append(many, single) {
			testutil.Check(n.t, rightData(a), when)
			if p.client().direct(a) != direct {
				n.t.Errorf("%s: %s answered, kube-dns asked by %s; direct must be %v", when, a, a.Client, direct)
			}
		}
	}
}

// TestOpenTCPConnections keeps connections through the agent's changes. One that kube-dns serves goes on as if there were
// no agent; one that the agent serves outlives a lapsed lease, and ends in good order with the agent.
func TestOpenTCPConnections(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeNF},
		{families: testutil.Dual, proxy: testutil.NFTables, attach: testutil.PTP},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, s)
			p := n.addPod(nil)
			old := n.dialAll(p)
			n.wantAnswers("no agent", p, old, true)
			// Queries that are on their way while the agent comes up.
			for _, c := range old {
				for range 3 {
					n.send(c, "delay-1500."+freshName())
				}
			}
			n.startAgent()
			n.wantSteered(p.client(), "agent up", n.all()...)
			for _, c := range old {
				for range 3 {
					n.wantNext("asked before the agent came", c)
				}
			}
			n.wantAnswers("kube-dns's connection, agent up", p, old, true)

			fresh := n.dialAll(p)
			n.wantAnswers("agent's connection", p, fresh, false)
			n.lapse(func() {
				n.wantAnswers("kube-dns's connection, agent stopped", p, old, true)
				for _, c := range fresh {
					n.send(c, freshName())
				}
			})
			for _, c := range fresh {
				n.wantNext("asked of a stopped agent", c)
			}
			n.wantAnswers("agent's connection after the lease lapsed", p, fresh, false)
			n.wantAnswers("kube-dns's connection after the lease lapsed", p, old, true)
			n.wantSteered(p.client(), "agent goes on", n.all()...)

			n.endWithQuestions(fresh)
			n.wantAnswers("kube-dns's connection, agent ended", p, old, true)
			n.wantAnswers("new connections, agent ended", p, n.dialAll(p), true)
		})
	}
}

// endWithQuestions ends the agent while queries are in flight: they are answered, and then comes the connection's end, in
// good order.
func (n *node) endWithQuestions(conns []*testutil.Conn) {
	n.t.Helper()
	for _, c := range conns {
		name := "delay-500." + freshName()
		n.send(c, name)
		testutil.Eventually(n.t, func() error { return testutil.ErrorIf(n.DNS.Asked(name) == 0, "kube-dns was not asked for %s", name) })
	}
	n.agent.Signal(unix.SIGTERM)
	for _, c := range conns {
		n.wantNext("in flight at SIGTERM", c)
		if _, err := c.Receive(); !errors.Is(err, io.EOF) {
			n.t.Errorf("a connection at the agent's end: %v, want the end of file", err)
		}
	}
	testutil.Check(n.t, n.agent.Wait(), "SIGTERM")
}

// dialAll opens a TCP connection to each of the node's addresses.
func (n *node) dialAll(p *pod) (conns []*testutil.Conn) {
	n.t.Helper()
	for _, a := range append(n.ClusterDNS(), n.locals()...) {
		conns = append(conns, n.dial(p, target{a, "tcp"}))
	}
	return conns
}

func (n *node) send(c *testutil.Conn, name string) {
	n.t.Helper()
	if _, err := c.Send(name, dns.TypeA); err != nil {
		n.t.Errorf("%s: %v", name, err)
	}
}

func (n *node) wantNext(when string, c *testutil.Conn) {
	n.t.Helper()
	a, err := c.Receive()
	if err == nil {
		err = rightData(a)
	}
	testutil.Check(n.t, err, when)
}

// lapse stops the agent until no lease stands, calls f, and lets it go on.
func (n *node) lapse(f func()) {
	n.t.Helper()
	n.agent.Stop()
	testutil.Eventually(n.t, func() error {
		leases := n.leases()
		return testutil.ErrorIf(len(leases) > 0, "leases stand: %v", leases)
	})
	f()
	n.agent.Cont()
}
