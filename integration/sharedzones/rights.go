package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// keys tries a limited key on all that is another cluster's.
func keys(s *stand, c *cell, sz size) {
	owner := s.startAll(1, clusterOptions{})[0]
	owner.publish(record{Label: "app", Addresses: []netip.Addr{ip(18, 0, 1)}, Balanced: true, Weight: 1})
	_, lost, left := s.zoneIs(patience, owner)
	c.wrong("before", lost, left)
	zone, err := s.server.Transfer()
	if err != nil {
		c.miss("%v", err)
		return
	}
	thief := s.server.Key(name(1))
	tried := 0
	for _, rr := range zone {
		if !strings.HasSuffix(strings.ToLower(rr.Header().Name), owner.id+"._neardns."+s.server.Zone()) {
			continue
		}
		for _, change := range []func(*dns.Msg){
			func(m *dns.Msg) { m.Remove([]dns.RR{dns.Copy(rr)}) },
			func(m *dns.Msg) { m.RemoveRRset([]dns.RR{dns.Copy(rr)}) },
			func(m *dns.Msg) { m.RemoveName([]dns.RR{dns.Copy(rr)}) },
			func(m *dns.Msg) {
				m.Insert([]dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: rr.Header().Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{"stolen"}}})
			},
		} {
			m := new(dns.Msg).SetUpdate(s.server.Zone())
			change(m)
			if _, err := exchangeAs(context.Background(), s.server, thief, m); err != nil {
				c.miss("%v", err)
			}
			tried++
		}
	}
	after, err := s.server.Transfer()
	if err != nil {
		c.miss("%v", err)
		return
	}
	if lost, left := differences(held(s.server.Zone(), zone), held(s.server.Zone(), after)); len(lost)+len(left) > 0 || !sameTexts(zone, after) {
		c.miss("a foreign key changed the zone: %v %v", lost, left)
	}
	// A cluster that has another one's key cannot write its own name.
	wrong := s.cluster(name(2), clusterOptions{Key: s.server.Key(name(1))})
	wrong.write(record{Label: "app", Addresses: []netip.Addr{ip(18, 0, 3)}, Balanced: true, Weight: 1})
	wrong.start()
	start := time.Now()
	for wrong.status.of(s.host("app")).Reason != "NotPermitted" && time.Since(start) < patience {
		pause(20 * time.Millisecond)
	}
	reason := wrong.status.of(s.host("app"))
	c.figure("foreign changes tried", float64(tried))
	c.Text = fmt.Sprintf("%d foreign changes tried, none applied; a cluster with a foreign key reports %s", tried, reason.Reason)
	if tried == 0 || reason.Reason != "NotPermitted" {
		c.miss("%d tried; the status is %+v", tried, reason)
	}
}

// sameTexts compares all TXT records by their words.
func sameTexts(a, b []dns.RR) bool {
	texts := func(zone []dns.RR) (out []string) {
		for _, rr := range zone {
			if rr.Header().Rrtype == dns.TypeTXT {
				out = append(out, rr.String())
			}
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(texts(a), texts(b))
}
