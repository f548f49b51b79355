package forward

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/forward"
	"github.com/coredns/coredns/plugin/pkg/proxy"
	"github.com/miekg/dns"
)

// BenchmarkMiss sends queries over a pooled connection, through this plugin and through CoreDNS's forward, in one process with the server.
// The difference is the cost of the plugins themselves.
//
//	go test -run xxx -bench Miss ./internal/dns/forward
func BenchmarkMiss(b *testing.B) {
	for _, stream := range []bool{false, true} {
		network := map[bool]string{false: "udp", true: "tcp"}[stream]
		f := newSocketFake(b, answersAs("good"))
		a := &Block{servers: NewServers(slog.New(slog.DiscardHandler)), zones: []string{"."}, specs: specs(b, f.addr), stream: stream}
		a.start()
		b.Cleanup(a.stop)
		fw := forward.New()
		fw.SetProxyOptions(proxy.Options{ForceTCP: stream, HCRecursionDesired: true, HCDomain: "."})
		p := proxy.NewProxy("forward", f.addr, "dns")
		p.SetExpire(10 * time.Second)
		fw.SetProxy(p)
		b.Cleanup(func() { p.Stop() })
		for name, h := range map[string]plugin.Handler{"ask": a, "forward": fw} {
			b.Run(network+"/"+name, func(b *testing.B) {
				q := new(dns.Msg).SetQuestion("a.example.", dns.TypeTXT)
				w := &kept{}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := h.ServeDNS(context.Background(), w, q); err != nil || w.msg.Id != q.Id {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
