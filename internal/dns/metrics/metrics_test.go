package metrics

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	stock "github.com/coredns/coredns/plugin/metrics"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/neardns/neardns/pkg/testutil"
)

// writer is a response writer with an address of its own.
type writer struct {
	test.ResponseWriter
	addr net.Addr
}

func (w *writer) RemoteAddr() net.Addr { return w.addr }

// counted sums up what CoreDNS's registry holds for one server address: name and labels (without server) → count.
func counted(t *testing.T, server string) map[string]float64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	testutil.Must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "coredns_dns_") {
			continue
		}
		for _, m := range f.GetMetric() {
			ours, labels := false, []string{}
			for _, l := range m.GetLabel() {
				if l.GetName() == "server" {
					ours = l.GetValue() == server
					continue
				}
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if ours {
				out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value(f, m)
			}
		}
	}
	return out
}

func value(f *dto.MetricFamily, m *dto.Metric) float64 {
	switch {
	case strings.HasSuffix(f.GetName(), "duration_seconds"):
		return float64(m.GetHistogram().GetSampleCount()) // the sum differs by nature
	case m.GetHistogram() != nil:
		return m.GetHistogram().GetSampleSum()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	}
	return m.GetGauge().GetValue()
}

// TestSameAsCoreDNS sends the same queries through CoreDNS's own plugin and through ours and compares every series.
func TestSameAsCoreDNS(t *testing.T) {
	udp4 := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}
	udp6 := &net.UDPAddr{IP: net.ParseIP("fd00::1"), Port: 4000}
	tcp6 := &net.TCPAddr{IP: net.ParseIP("fd00::1"), Port: 4000}
	tcp4 := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}

	backend := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		switch {
		case strings.HasPrefix(r.Question[0].Name, "fail."):
			return dns.RcodeServerFailure, nil
		case strings.HasPrefix(r.Question[0].Name, "odd."):
			m := new(dns.Msg).SetRcode(r, 1000)
			return 1000, w.WriteMsg(m)
		case strings.HasPrefix(r.Question[0].Name, "raw."):
			_, err := w.Write([]byte("0123456789"))
			return dns.RcodeSuccess, err
		}
		m := new(dns.Msg).SetReply(r)
		m.Answer = append(m.Answer, test.A(r.Question[0].Name+" 30 IN A 192.0.2.1"))
		return dns.RcodeSuccess, w.WriteMsg(m)
	})
	ask := func(h plugin.Handler, server string) {
		ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: server})
		for _, addr := range []net.Addr{udp4, udp6, tcp4, tcp6} {
			for _, name := range []string{"a.example.org.", "A.EXAMPLE.net.", "a.b.example.org.", "b.example.org.", "xb.example.org.", "org.", ".", "fail.example.org.", "odd.example.org.", "raw.example.org."} {
				for qtype := range uint16(300) {
					r := new(dns.Msg).SetQuestion(name, qtype)
					if qtype%3 == 0 {
						r.SetEdns0(1232, qtype%2 == 0)
					}
					_, err := h.ServeDNS(ctx, &writer{addr: addr}, r)
					testutil.Must(t, err)
				}
			}
		}
	}
	zones := []string{"example.org.", "example.net.", "b.example.org."}
	theirs := stock.New("127.0.0.1:0")
	theirs.Next = backend
	for _, z := range zones {
		theirs.AddZone(z)
	}
	ask(theirs, "dns://theirs:53")
	ask(&Metrics{zones: zones, next: backend}, "dns://ours:53")

	want := counted(t, "dns://theirs:53")
	if len(want) < 100 {
		t.Fatalf("only %d series to compare with", len(want))
	}
	testutil.Equal(t, "series, CoreDNS's wanted", want, counted(t, "dns://ours:53"))
}

func TestSetup(t *testing.T) {
	testutil.Must(t, Setup(caddy.NewTestController("dns", "metrics")))
	families, err := prometheus.DefaultGatherer.Gather()
	testutil.Must(t, err)
	for _, f := range families {
		if f.GetName() == "coredns_build_info" && len(f.GetMetric()) == 1 {
			return
		}
	}
	t.Error("coredns_build_info is missing")
}
