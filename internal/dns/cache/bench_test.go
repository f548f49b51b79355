package cache_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// sink is a response writer that drops what is written. WriteMsg packs, as the DNS library's writer does.
type sink struct {
	client
	buf []byte
}

func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

func (s *sink) WriteMsg(m *dns.Msg) (err error) {
	s.buf, err = m.PackBuffer(s.buf)
	return err
}

// BenchmarkHandler answers through both caches, from the scrubber of CoreDNS's server to the bytes for the socket.
func BenchmarkHandler(b *testing.B) {
	next := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetReply(r)
		for i := range 2 {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: net.IPv4(192, 0, 2, byte(i))})
		}
		return 0, w.WriteMsg(m)
	})
	store := answers.NewStore(0)
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://bench:53"})
	for rotate, p := range map[string]process{"rotate": &ourProcess{store: store, metrics: newMetrics(store)}, "": stockProcess{}} {
		c := caddy.NewTestController("dns", "cache {\n prefetch 3 1m 10%\n"+rotate+"\n}")
		c.ServerBlockKeys = []string{"."}
		testutil.Must(b, p.setup()(c))
		h := dnsserver.GetConfig(c).Plugin[0](next)
		for _, kind := range []string{"hit", "hit, DO", "miss"} {
			b.Run(fmt.Sprintf("%s/%T", kind, p), func(b *testing.B) {
				s, r := &sink{client: client{remote: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}}}, new(dns.Msg).SetQuestion("svc-1.default.svc.cluster.local.", dns.TypeA)
				if kind == "hit, DO" {
					r.SetEdns0(1232, true)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if kind == "miss" {
						r = new(dns.Msg).SetQuestion(fmt.Sprintf("svc-%d.default.svc.cluster.local.", i), dns.TypeA)
					}
					if _, err := h.ServeDNS(ctx, request.NewScrubWriter(r, s), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
