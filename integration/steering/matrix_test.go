package steering

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestMatrix takes the agent through its life and deaths on every kind of node, and asks in each state by every protocol,
// address and family.
func TestMatrix(t *testing.T) {
	for _, families := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			for _, attach := range []testutil.Attach{testutil.PTP, testutil.BridgeCNI, testutil.BridgeNF} {
				s := setup{families: families, proxy: proxy, attach: attach}
				t.Run(s.String(), func(t *testing.T) {
					t.Parallel()
					walk(t, s)
				})
			}
		}
	}
}

func walk(t *testing.T, s setup) {
	t.Helper()
	// A pod is steered where the fallback was proven before, as after a reboot; ptp's nodes are told not to ask for that.
	s.proven = s.attach != testutil.PTP
	n := newNode(t, s)
	if s.proven {
		n.prove()
	}
	p := n.addPod(nil)
	if err := p.in(podfile.Steered); err != nil {
		t.Fatal(err)
	}
	c := p.client()
	n.wantFallback(c, "agent never started", n.all()...)

	n.startAgent()
	n.wantSteered(c, "agent up", n.all()...)
	n.wantUntracked(p, n.all()...)

	n.agent.Kill()
	n.wantFallback(c, "agent killed", n.all()...)
	n.wantNoProber("agent killed")

	n.startAgent()
	n.wantSteered(c, "agent up again", n.all()...)
	n.agent.Stop()
	took := n.wantFallbackWithin(c, "agent stopped", lifetime+retry+slack, n.all()...)
	t.Logf("a stopped agent's last target fell back after %v", took.Round(time.Millisecond))
	n.agent.Cont()
	n.wantSteered(c, "agent goes on", n.all()...)

	n.agent.Signal(unix.SIGTERM)
	if err := n.agent.Wait(); err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, n.agent.Output())
	}
	n.wantFallback(c, "lease withdrawn", n.all()...)
	n.wantStays()
	n.startAgent()
	n.wantSteered(c, "agent up after an orderly stop", n.all()...)
}

// prove writes what an agent has left that proved the fallback.
func (n *node) prove() {
	n.t.Helper()
	if err := podfile.WriteProof(n.persistDir(), podfile.Proof{ClusterDNS: n.ClusterDNS(), Time: time.Now()}); err != nil {
		n.t.Fatal(err)
	}
}

// wantNoProber waits until nothing of the prober is left: its link goes with its netns, and that with the process.
func (n *node) wantNoProber(when string) {
	n.t.Helper()
	testutil.Eventually(n.t, 5*time.Second, func() error {
		if n.hasLink("neardns-prober") {
			return wrap(when, errProber)
		}
		return nil
	})
}

// wantStays looks at what an orderly stop leaves: link and switch, and no lease.
func (n *node) wantStays() {
	n.t.Helper()
	if !n.hasLink("neardns0") {
		n.t.Error("the link must outlive the agent")
	}
	if s := n.status(); !s.Switch || s.NoAgent == "" {
		n.t.Errorf("the switch must outlive the agent: %+v", s)
	}
	if leases := n.leases(); len(leases) > 0 {
		n.t.Errorf("leases stand after an orderly stop: %v", leases)
	}
	n.wantNoProber("after an orderly stop")
}

var errProber = errors.New("the link neardns-prober is still there")
