package zone

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// A claim of an older version has no TTL. Its cluster stops writing if the host's TTL is not its own, so the zone's TTL stays.
func TestTTLOfOlderVersion(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	for _, rr := range compose(origin, claimOf("cluster2", www)) {
		if x, ok := rr.(*dns.TXT); ok && strings.HasPrefix(x.Hdr.Name, "www.cluster2.") {
			x.Txt = slices.DeleteFunc(x.Txt, func(s string) bool { return s == "ttl=60" })
		}
		p.add(rr)
	}
	st := p.write("cluster1", edit(www, func(p *Publication) { p.TTL = 300 }))
	if len(st.Notes) != 1 || !strings.Contains(st.Notes[0].Message, "60 by cluster2; 300 by cluster1") {
		t.Fatalf("%+v", st)
	}
	if h := p.read().Hosts[www.Host]; h.TTL != 60 || len(h.Owners) != 2 {
		t.Errorf("%+v", h)
	}
}
