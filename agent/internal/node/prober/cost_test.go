package prober

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Probing must leave no TIME_WAIT, no open socket and no conntrack entry behind, in neither netns.
func TestProbesLeaveNoSockets(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	p := n.prober(t)
	for range 50 {
		for _, a := range n.ClusterDNS() {
			wantOK(t, probe(t, p, a, steer.TCP))
		}
	}
	testutil.Eventually(t, func() error { return noTCP(n.Host.Run("ss", "-Htan", "state", "connected")) })
	testutil.Check(t, noTCP(p.output(t, "ss", "-Htan", "state", "all")))
	testutil.WantNoConntrack(t, n.Host)
}

func noTCP(list string) error {
	return testutil.ErrorIf(list != "", "TCP sockets left:\n%s", list)
}
