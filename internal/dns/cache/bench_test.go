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

// sink is a response writer that drops what is written.
type sink struct {
	client
	buf []byte
}

func (s *sink) Write(b []byte) (int, error) { return len(b), nil }

// WriteMsg packs, as the DNS library's writer does.
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
	for _, sub := range []subject{ours(), stock()} {
		process := func(b *testing.B) process {
			if sub.name == "coredns" {
				return stockProcess{}
			}
			store := answers.NewStore(0)
			return &ourProcess{store: store, metrics: newMetrics(store)}
		}
		handler := func(b *testing.B) plugin.Handler {
			block := "cache {\n prefetch 3 1m 9%\n}"
			if sub.name == "ours" { // as the agent renders it
				block = "cache {\n prefetch 3 1m 9%\n rotate\n}"
			}
			c := caddy.NewTestController("dns", block)
			c.ServerBlockKeys = []string{"."}
			testutil.Must(b, process(b).setup()(c))
			return dnsserver.GetConfig(c).Plugin[0](next)
		}
		ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://bench:53"})
		for _, do := range []bool{false, true} {
			b.Run(fmt.Sprintf("hit/%s/do=%v", sub.name, do), func(b *testing.B) {
				h := handler(b)
				r := new(dns.Msg)
				r.SetQuestion("svc-1.default.svc.cluster.local.", dns.TypeA)
				if do {
					r.SetEdns0(1232, true)
				}
				s := &sink{client: client{remote: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}}}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := h.ServeDNS(ctx, request.NewScrubWriter(r, s), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run("miss/"+sub.name, func(b *testing.B) {
			h := handler(b)
			s := &sink{client: client{remote: &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := new(dns.Msg)
				r.SetQuestion(fmt.Sprintf("svc-%d.default.svc.cluster.local.", i), dns.TypeA)
				if _, err := h.ServeDNS(ctx, request.NewScrubWriter(r, s), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
