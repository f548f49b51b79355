package authoritative_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// crowd is a host of 50 clusters with two addresses each.
func crowd() []zone.Publication {
	var ps []zone.Publication
	for i := range 50 {
		p := pub("app."+origin, []string{"ie", "de", "us"}[i%3], uint32(i), fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("198.51.100.%d", i))
		p.Health = &zone.Health{Protocol: zone.TCP, Port: 443}
		ps = append(ps, p)
	}
	return ps
}

// BenchmarkCompile serves a new version of a zone of 100 hosts with 50 clusters each.
func BenchmarkCompile(b *testing.B) {
	var ps []zone.Publication
	for i := range 100 {
		for _, p := range crowd() {
			p.Host = fmt.Sprintf("h%d.%s", i, origin)
			ps = append(ps, p)
		}
	}
	var records []dns.RR
	for at := 0; at < len(ps); at += 50 { // of one host: published compares each record with those before
		records = append(records, published(ps[at:at+50]...)...)
	}
	take := authoritative.New(authoritative.Options{}).Taker(origin, unwatched)
	records = append(records, base(b)...)
	b.ReportMetric(float64(len(records)), "records")
	for b.Loop() {
		testutil.Must(b, take(records))
	}
}
