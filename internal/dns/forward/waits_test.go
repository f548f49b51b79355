package forward

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

const quick = 0 // at once: without waiting for a server

func tcp(a *Block) { a.stream = true }

// TestWaits is the table in README.md: how long a client waits while something is wrong with the first server, at the first query and, once
// that is known, at the tenth. TestTimingWaits measures it over sockets.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name        string
			first       func(t testing.TB) string
			stream      bool
			most, known time.Duration // of the waits; known is when ten queries have been sent
		}{
			{"nothing listens (REJECT), over TCP", closedPort, true, quick, quick},
			{"nothing listens (REJECT), over UDP", closedPort, false, quick, quick},
			{"packets vanish, over TCP", blackhole, true, hedgeAfter, quick},
			{"packets vanish, over UDP", blackhole, false, hedgeAfter, quick},
			{"connects and stays silent", func(t testing.TB) string { return newFake(t, onBoth, silence).addr }, true, hedgeAfter, quick},
			{"SERVFAIL", func(t testing.TB) string { return newFake(t, onBoth, code(dns.RcodeServerFailure)).addr }, true, quick, quick},
			{"REFUSED", func(t testing.TB) string { return newFake(t, onBoth, code(dns.RcodeRefused)).addr }, true, quick, quick},
			{"denies out of another zone", func(t testing.TB) string { return newFake(t, onBoth, denies(".")).addr }, true, quick, quick},
			{"answers after 1.5 s", func(t testing.TB) string {
				return newFake(t, onBoth, after(1500*time.Millisecond, answersAs("slow"))).addr
			}, true, hedgeAfter, quick},
		} {
			func(t testing.TB) {
				kubeDNS := newFake(t, onBoth, answersAs("kube-dns"))
				b := serve(t, func(a *Block) {
					a.stream, a.holds = tc.stream, []string{"cluster.local."}
					a.resorts = specs(t, kubeDNS.addr)
				}, tc.first(t))
				for i := range 10 {
					who, took := b.ask("udp", fmt.Sprintf("n%d.cluster.local.", i))
					most := tc.most
					if i >= failLimit {
						most = tc.known
					}
					if who != "kube-dns" || took > most {
						t.Errorf("question %d: %q after %s, want kube-dns within %s", i, who, took.Round(time.Millisecond), most)
					}
					if i == 0 || i == 9 {
						t.Logf("%-36s question %2d: %6.1f ms", tc.name, i+1, float64(took.Microseconds())/1000)
					}
				}
				if n := b.resorted.Load(); n != 10 {
					t.Errorf("%d answers of the last resort counted, want 10", n)
				}
			}(named{t, tc.name})
		}
	})
}

// With a single server, a client waits longer for the answer, and a query without one ends within two seconds.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			name        string
			server      func(t testing.TB) string
			want        string
			least, most time.Duration
		}{
			{"answers after 1.5 s", func(t testing.TB) string {
				return newFake(t, onBoth, after(1500*time.Millisecond, answersAs("slow"))).addr
			}, "slow", 1500 * time.Millisecond, 1500 * time.Millisecond},
			{"silent", func(t testing.TB) string { return newFake(t, onBoth, silence).addr }, "SERVFAIL: plugin/ask: ", silentEnd, silentEnd},
			{"packets vanish", blackhole, "SERVFAIL: plugin/ask: ", silentEnd, silentEnd},
			{"nothing listens", closedPort, "SERVFAIL: plugin/ask: ", 0, time.Second},
			{"SERVFAIL", func(t testing.TB) string { return newFake(t, onBoth, code(dns.RcodeServerFailure)).addr }, "SERVFAIL", 0, quick},
		} {
			for _, stream := range []bool{false, true} {
				func(t testing.TB) {
					b := serve(t, func(a *Block) { a.stream = stream }, tc.server(t))
					got, took := b.ask("udp", "a.example.")
					if len(got) < len(tc.want) || got[:len(tc.want)] != tc.want || took < tc.least || took > tc.most {
						t.Errorf("%q after %s, want %q after %s to %s", got, took, tc.want, tc.least, tc.most)
					}
					t.Logf("%s: %s", tc.name, took.Round(time.Millisecond))
				}(named{t, fmt.Sprintf("%s, TCP %v", tc.name, stream)})
			}
		}
	})
}
