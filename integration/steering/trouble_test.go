package steering

import (
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestUpstreamInTrouble: names whose servers are slow are answered, by either upstream. TestWholeAfterAFault, TestNoHeadOverTCP and
// TestFloodBelowADeadZone (internal/dns/forward) have what else may be wrong behind a resolver.
func TestUpstreamInTrouble(t *testing.T) {
	n, p := newServed(t, setup{external: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
	var wg sync.WaitGroup
	for _, delay := range []string{"delay-2400.", "delay-4000."} {
		for who, name := range map[string]string{"EXTERNAL": delay + "example.", "KUBEDNS": delay + freshName()} {
			wg.Go(func() {
				a, err := testutil.Ask(p.NetNS, n.all()[0].server(), name, dns.TypeA, "udp", testutil.AskOptions{EDNS: 1232})
				if err != nil || a.Rcode() != "NOERROR" || a.Who != who {
					t.Errorf("%s: %v, %v", name, a, err)
				}
			})
		}
	}
	wg.Wait()
}
