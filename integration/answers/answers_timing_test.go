//go:build timing

package answers

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestTimingSameAnswersAsKubeDNS counts the queries that changes of kube-dns's Corefile cost: none.
//
// State: TestSameAnswersAsKubeDNS. Bound: none, it counts lost queries.
func TestTimingSameAnswersAsKubeDNS(t *testing.T) { sameAnswersAsKubeDNS(t, losses) }

// losses has the steered pod query without a pause until the returned function is called, which fails the test if a query had no answer.
func losses(n *node) (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	var lost, asked atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		pause := time.NewTicker(10 * time.Millisecond)
		defer pause.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			name := "kubernetes.default.svc.cluster.local."
			if i%2 == 1 {
				name = fmt.Sprintf("flow%d.outside.example.", i)
			}
			rcode, err := n.ask(n.steered, name, dns.TypeA, way{"udp", 0})
			asked.Add(1)
			if err != nil || !strings.HasPrefix(rcode, "NOERROR ") {
				n.t.Logf("%s: %s, %v", name, rcode, err)
				lost.Add(1)
			}
			<-pause.C
		}
	}()
	end := func() {
		cancel()
		<-done
	}
	n.t.Cleanup(end) // a test that ends early must not be logged to any more
	return func() {
		end()
		if lost, asked := lost.Load(), asked.Load(); lost > 0 || asked < 50 {
			n.t.Errorf("%d of %d queries had no answer while kube-dns's Corefile changed", lost, asked)
		}
	}
}
