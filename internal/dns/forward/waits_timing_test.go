//go:build timing

package forward

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingWaits measures over real sockets how long a client waits while something is wrong with the first server, for the
// first query and for the tenth.
//
// State: TestFaultsOfTheKernel. Bound: TestWaits.
func TestTimingWaits(t *testing.T) {
	for _, tc := range []struct {
		name  string
		first func() string
		most  time.Duration // of the first query; the tenth is answered at once
	}{
		{"nothing listens", func() string {
			l, pc := testutil.ListenBoth(t)
			l.Close()
			pc.Close()
			return pc.LocalAddr().String()
		}, hedgeAfter},
		{"silent", func() string { return newSocketFake(t, silence).addr }, 2 * hedgeAfter},
		{"SERVFAIL", func() string { return newSocketFake(t, code(dns.RcodeServerFailure)).addr }, hedgeAfter},
		{"answers after 1.5 s", func() string { return newSocketFake(t, after(1500*time.Millisecond, answersAs("slow"))).addr }, 2 * hedgeAfter},
	} {
		for _, stream := range []bool{false, true} {
			last := newSocketFake(t, answersAs("kube-dns"))
			b := serveBy(t, connectSocket, func(a *Block) { a.stream, a.resorts = stream, specs(t, last.addr) }, tc.first())
			for i := range 10 {
				who, took := b.ask("udp", fmt.Sprintf("n%d.cluster.local.", i))
				if who != "kube-dns" || took >= tc.most || i == 9 && took >= hedgeAfter {
					t.Errorf("%s, TCP %v, query %d: %q after %s", tc.name, stream, i+1, who, took)
				}
				if i == 0 || i == 9 {
					t.Logf("%-20s TCP %-5v query %2d: %6.1f ms", tc.name, stream, i+1, float64(took.Microseconds())/1000)
				}
			}
		}
	}
}
