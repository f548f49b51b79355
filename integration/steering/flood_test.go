package steering

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// hits are names that a test keeps in the cache.
func hits(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("ttl-600.hit%d.svc.cluster.local", i))
	}
	return names
}

// warm queries each name until all are answered.
func (n *node) warm(p *pod, names []string) {
	n.t.Helper()
	c := n.dial(p, n.all()[0])
	for _, name := range names {
		testutil.Eventually(n.t, func() error {
			a, err := c.Ask(name, dns.TypeA)
			return testutil.ErrorIf(err != nil || a.Msg.Rcode == dns.RcodeServerFailure, "%s: %v, %v", name, a, err)
		})
	}
}

// denials are names that there are not.
func denials(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("rcode-3.ttl-600.no%d.svc.cluster.local", i))
	}
	return names
}

// TestFlood has one pod query 4,000 random names a second while the upstream takes five seconds for each. Once the flood is shed, another
// pod's names are answered from the cache, and the agent's misses stay bounded: without bounds it would hold the queries of five seconds.
// `make faults` counts what is lost at 20,000 a second, and judges the agent's memory.
func TestFlood(t *testing.T) {
	n, noisy := newServed(t, setup{})
	quiet := n.addPod(nil)
	names := hits(2000)
	n.warm(quiet, names)
	n.warm(quiet, denials(2000))
	end := flood(t, noisy.NetNS, n.all()[0].server(), "delay-5000.svc.cluster.local", 4000)
	testutil.Eventually(t, func() error {
		return testutil.ErrorIf(n.metric(`neardns_misses_shed_total{reason="share"}`) == 0, "one pod's flood is not shed by its share")
	})
	for i := range 50 {
		testutil.Eventually(t, func() error {
			_, err := quiet.client().ask(n.all()[0], names[i], time.Second)
			return err
		})
	}
	end()
	if full := n.metric(`neardns_misses_shed_total{reason="full"}`); full > 0 {
		t.Errorf("one pod's flood filled the gate: %v misses", full)
	}
	n.awaitMetric("neardns_misses_in_flight", 0)
}
