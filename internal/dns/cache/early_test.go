package cache

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestEarlyFetchesCost: a name that is queried all the time is refreshed before its entry expires, and only the first client waits. The
// upstream gets at most a tenth more queries than if answers expire.
func TestEarlyFetchesCost(t *testing.T) {
	const terms = "cache {\n success 1024 3600 0\n denial 1024 3600 0\n"
	for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeNameError} {
		for _, ttl := range []uint32{1, 2, 5, 30, 300} {
			t.Run(fmt.Sprint(dns.RcodeToString[rcode], " ", ttl), func(t *testing.T) {
				expiry, waited := askedAllTheTime(t, terms+"}", rcode, ttl)
				if expiry < hotTTLs-1 || waited != expiry {
					t.Fatalf("%d questions to the upstream, %d clients waited: the answers did not expire", expiry, waited)
				}
				early, waited := askedAllTheTime(t, terms+" prefetch 3 1m 9%\n}", rcode, ttl)
				if waited != 1 {
					t.Errorf("%d clients waited for the upstream", waited)
				}
				if ratio := float64(early) / float64(expiry); ratio > 1.1 || ratio <= 1 {
					t.Errorf("%d questions to the upstream, %d where answers expire: %.3f of them", early, expiry, ratio)
				}
			})
		}
	}
}

const hotTTLs = 20 // how many TTLs long a name is queried

// askedAllTheTime queries one name a hundred times in each TTL. It returns how many queries the upstream had, and how many clients
// waited for it.
func askedAllTheTime(t *testing.T, block string, rcode int, ttl uint32) (upstream, waited int) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, block)
		f.answer = func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
			<-time.After(time.Millisecond)
			m := new(dns.Msg).SetRcode(r, rcode)
			head := dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}
			if rcode == dns.RcodeSuccess {
				m.Answer = []dns.RR{&dns.A{Hdr: head, A: net.IPv4(192, 0, 2, 1)}}
			} else {
				head.Name, head.Rrtype = ".", dns.TypeSOA
				m.Ns = []dns.RR{&dns.SOA{Hdr: head, Ns: "ns.", Mbox: "h.", Minttl: ttl}}
			}
			return rcode, w.WriteMsg(m)
		}
		for range 100 * hotTTLs {
			begun := time.Now()
			f.ask("a.example.")
			if time.Since(begun) > 0 {
				waited++
			}
			<-time.After(time.Duration(ttl) * time.Second / 100)
		}
		upstream = int(f.asked.Load())
	})
	return upstream, waited
}
