package cache

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// laden is a query with all header bits, EDNS options and other records that a client can add.
func laden(name string) *dns.Msg {
	r := new(dns.Msg)
	r.SetQuestion(name, dns.TypeA)
	r.Authoritative, r.Truncated, r.RecursionAvailable, r.Zero, r.Rcode = true, true, true, true, dns.RcodeRefused
	r.SetEdns0(4096, false)
	o := r.IsEdns0()
	o.Option = []dns.EDNS0{
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{198, 51, 100, 0}},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1c5d4f3e2b"}, &dns.EDNS0_NSID{Code: dns.EDNS0NSID},
		&dns.EDNS0_PADDING{Padding: make([]byte, 100)}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("odd")},
	}
	o.Hdr.Ttl |= 0x1234 // unknown flags
	r.Extra = append(r.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"more"}})
	r.Ns = append(r.Ns, &dns.TXT{Hdr: dns.RR_Header{Name: "y.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"and more"}})
	return r
}

func plain(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

// put sends a query as it is.
func (f *fixture) put(r *dns.Msg) *dns.Msg {
	w := new(writer)
	_, err := f.cache.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r)
	testutil.Check(f.t, err)
	return w.msg
}

// heed answers like resolvers whose answer depends on a query's EDNS options; no other client may get that answer.
func heed(w dns.ResponseWriter, r *dns.Msg) (int, error) {
	m := new(dns.Msg).SetReply(r)
	address := "203.0.113.7"
	for _, o := range r.IsEdns0().Option {
		switch o.Option() {
		case dns.EDNS0SUBNET:
			address = "198.51.100.66"
		case 65001:
			m.Rcode = dns.RcodeServerFailure
			return 0, w.WriteMsg(m)
		}
	}
	m.Answer = append(m.Answer, record(r.Question[0].Name+" 10 IN A "+address))
	return 0, w.WriteMsg(m)
}

func record(s string) dns.RR {
	rr, err := dns.NewRR(s)
	if err != nil {
		panic(err)
	}
	return rr
}

// TestNeighbourDecidesNothing: the options that one client adds to its query do not change the query to the upstream, whether a miss, an
// early fetch or the refresh of a stale answer sends it. So they do not change the answers of other clients, which share it.
func TestNeighbourDecidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n prefetch 1 1m 90%\n serve_stale 1h verify 500ms\n}")
		var mu sync.Mutex
		asked := map[string][]string{}
		f.answer = func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
			q := r.Copy()
			q.Id = 0
			mu.Lock()
			asked[q.Question[0].Name] = append(asked[q.Question[0].Name], strings.ReplaceAll(q.String(), q.Question[0].Name, "NAME"))
			mu.Unlock()
			<-time.After(100 * time.Millisecond)
			return heed(w, r)
		}
		play := func(name string, first func(string) *dns.Msg) {
			var wg sync.WaitGroup
			ask := func(m *dns.Msg) {
				got := f.put(m)
				if len(got.Answer) != 1 || got.Answer[0].(*dns.A).A.String() != "203.0.113.7" {
					t.Errorf("%s: %v", name, got)
				}
				if o := got.IsEdns0(); (o != nil) != (m.IsEdns0() != nil) || o != nil && slices.ContainsFunc(o.Option, func(e dns.EDNS0) bool {
					return e.Option() != dns.EDNS0COOKIE && e.Option() != dns.EDNS0NSID && e.Option() != dns.EDNS0PADDING && e.Option() != dns.EDNS0SUBNET
				}) {
					t.Errorf("%s: %v", name, o)
				}
			}
			wg.Go(func() { ask(first(name)) })
			synctest.Wait()
			for range 3 { // queries that wait for the first one's answer
				wg.Go(func() { ask(plain(name)) })
			}
			wg.Wait()
			<-time.After(3 * time.Second)
			ask(first(name)) // an early fetch
			synctest.Wait()
			<-time.After(time.Minute)
			ask(first(name)) // a refresh of the stale entry
			<-time.After(time.Minute)
		}
		play("n1.example.", plain)
		play("n2.example.", laden)
		play("n3.example.", func(string) *dns.Msg { return laden("N3.eXample.") })
		if len(asked["n1.example."]) != 3 {
			t.Errorf("asked %q, want a miss, an early fetch and a refresh", asked["n1.example."])
		}
		for _, name := range []string{"n2.example.", "n3.example."} {
			// A client's larger UDP size is forwarded, because a truncated answer is not stored.
			for i, q := range asked[name] {
				asked[name][i] = strings.ReplaceAll(q, "udp: 4096", "udp: 1232")
			}
			if !slices.Equal(asked[name], asked["n1.example."]) {
				t.Errorf("%s:\n%s\nwant\n%s", name, asked[name], asked["n1.example."])
			}
		}
	})
}

// TestUpstreamWithoutEDNS: an upstream that does not understand EDNS is queried without it, for clients with and without EDNS (RFC 6891,
// section 7).
func TestUpstreamWithoutEDNS(t *testing.T) {
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, "cache")
			withoutEDNS := func(answer answerer) answerer {
				return func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
					if r.IsEdns0() != nil {
						return denied(rcode, false)(w, r)
					}
					return answer(w, r)
				}
			}
			f.answer = withoutEDNS(address("192.0.2.1", 60))
			for i, m := range []*dns.Msg{plain("n1.example."), laden("n2.example.")} {
				if got := f.put(m); got.Rcode != dns.RcodeSuccess || len(got.Answer) != 1 {
					t.Errorf("%s: %v", dns.RcodeToString[rcode], got)
				}
				testutil.Equal(t, "upstream queries", int64(2*(i+1)), f.asked.Load())
				f.want(m.Question[0].Name, "NOERROR 192.0.2.1 60")
			}
			// If the upstream also refuses the query without EDNS, that answer is final.
			f.answer = denied(rcode, false)
			f.want("n3.example.", dns.RcodeToString[rcode])
			f.answer = withoutEDNS(fails(errors.New("i/o timeout")))
			f.want("n4.example.", "SERVFAIL unwritten, i/o timeout")
		})
	}
}
