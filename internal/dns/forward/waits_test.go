package forward

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

const quick = 0 // at once: without waiting for a server

func tcp(a *Block) { a.stream = true }

// serves makes a server with such answers.
func serves(answer func(*dns.Msg, bool) *dns.Msg) func(t testing.TB) (addr string) {
	return func(t testing.TB) string { return newFake(t, onBoth, answer).addr }
}

var answersLate = serves(after(1500*time.Millisecond, answersAs("slow")))

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
			{"connects and stays silent", serves(silence), true, hedgeAfter, quick},
			{"SERVFAIL", serves(code(dns.RcodeServerFailure)), true, quick, quick},
			{"REFUSED", serves(code(dns.RcodeRefused)), true, quick, quick},
			{"denies out of another zone", serves(denies(".")), true, quick, quick},
			{"answers after 1.5 s", answersLate, true, hedgeAfter, quick},
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
				}
				testutil.Equal(t, "answers of the last resort counted", 10, b.resorted.Load())
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
			{"answers after 1.5 s", answersLate, "slow", 1500 * time.Millisecond, 1500 * time.Millisecond},
			{"silent", serves(silence), "SERVFAIL: plugin/ask: ", silentEnd, silentEnd},
			{"packets vanish", blackhole, "SERVFAIL: plugin/ask: ", silentEnd, silentEnd},
			{"nothing listens", closedPort, "SERVFAIL: plugin/ask: ", 0, time.Second},
			{"SERVFAIL", serves(code(dns.RcodeServerFailure)), "SERVFAIL", 0, quick},
		} {
			for _, stream := range []bool{false, true} {
				func(t testing.TB) {
					b := serve(t, func(a *Block) { a.stream = stream }, tc.server(t))
					got, took := b.ask("udp", "a.example.")
					if !strings.HasPrefix(got, tc.want) || took < tc.least || took > tc.most {
						t.Errorf("%q after %s, want %q after %s to %s", got, took, tc.want, tc.least, tc.most)
					}
				}(named{t, fmt.Sprintf("%s, TCP %v", tc.name, stream)})
			}
		}
	})
}
