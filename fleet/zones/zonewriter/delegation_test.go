package zonewriter_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestNameServers: the name server of a delegated zone is a host of the parent zone that each cluster with edges publishes, next to the cut
// or below it, as glue. A resolver that follows the parent's referral finds the addresses of all of them at any time, and no program writes
// an NS record (D-067).
func TestNameServers(t *testing.T) {
	onEach(t, zoneserver.Config{Records: []string{"child 60 IN NS edges", "glued 60 IN NS ns.glued"}}, func(t *testing.T, s *zoneserver.Server) {
		ask := func(name string, qtype uint16) (*dns.Msg, error) {
			q := new(dns.Msg).SetQuestion(name, qtype)
			q.RecursionDesired = false
			m, _, err := (&dns.Client{Net: "tcp", Timeout: testutil.Attempt}).Exchange(q, s.Addr().String())
			return m, err
		}
		// refers waits until a resolver that queries the parent for a name of a delegated zone is sent to addresses.
		refers := func(child, server string, addresses ...string) {
			t.Helper()
			slices.Sort(addresses)
			testutil.Eventually(t, func() error {
				m, err := ask("app."+child+origin, dns.TypeA)
				if err != nil {
					return err
				}
				if len(m.Ns) != 1 || len(m.Answer) > 0 || m.Authoritative || m.Ns[0].(*dns.NS).Ns != server+origin {
					return fmt.Errorf("no referral to %s: %v", server, m)
				}
				found := m.Extra
				if !dns.IsSubDomain(child+origin, server+origin) { // no glue: the resolver queries
					found = nil
					for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
						if m, err = ask(server+origin, qtype); err != nil || !m.Authoritative {
							return fmt.Errorf("%w: %v", err, m)
						}
						found = append(found, m.Answer...)
					}
				}
				var got []string
				for _, rr := range found {
					switch a := rr.(type) {
					case *dns.A:
						got = append(got, a.A.String())
					case *dns.AAAA:
						got = append(got, a.AAAA.String())
					}
				}
				slices.Sort(got)
				return testutil.ErrorIf(!slices.Equal(got, addresses), "%v, want %v", got, addresses)
			})
		}
		a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
		b := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute})
		for child, server := range map[string]string{"child.": "edges.", "glued.": "ns.glued."} {
			host := server[:len(server)-1]
			a.set(t, simple(host, "192.0.2.1", "2001:db8::1"))
			b.set(t, simple(host, "192.0.2.2", "2001:db8::1")) // one load balancer for both over IPv6
			a.clean(t)
			b.clean(t)
			refers(child, server, "192.0.2.1", "192.0.2.2", "2001:db8::1")
			a.put(t, simple(host, "192.0.2.3"))
			refers(child, server, "192.0.2.2", "192.0.2.3", "2001:db8::1")
			b.leave(t, server+origin)
			refers(child, server, "192.0.2.3")
		}
	})
}
