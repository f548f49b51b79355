package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// restored brings back the zone of an hour ago.
func restored(s *stand, c *cell, sz size) {
	clusters := s.startAll(sz.clusters, clusterOptions{})
	publish := func(version int) {
		s.together(c, "publish", clusters, func(i int) []record {
			return []record{{Label: "app", Addresses: []netip.Addr{ip(18, version, i)}}}
		})
	}
	publish(1)
	restore := s.server.Snapshot()
	publish(2)
	s.anHour()
	publish(3)
	restore()
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("restored", lost, left)
	c.figure("whole after, seconds", took.Seconds())
	c.Said = fmt.Sprintf("%d clusters: whole %s after an older zone came back, lost %.0f, left over %.0f", len(clusters), seconds(took), c.Figures["lost"], c.Figures["left over"])
	if took > 10*time.Second {
		c.miss("whole after %s, more than 10 s", seconds(took))
	}
}

// anHour raises the zone's serial as an hour of heartbeats does: 12 of each cluster. A serial that is only a little older than the one that
// clusters know would be theirs again as soon as some of them have mended the zone.
func (s *stand) anHour() {
	s.t.Helper()
	rr := &dns.TXT{Hdr: dns.RR_Header{Name: "hour." + s.server.Zone(), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: []string{"beat"}}
	for range 6 * len(s.all) {
		for _, change := range []func(*dns.Msg, []dns.RR){(*dns.Msg).Insert, (*dns.Msg).RemoveRRset} {
			m := new(dns.Msg).SetUpdate(s.server.Zone())
			change(m, []dns.RR{dns.Copy(rr)})
			if _, err := exchange(context.Background(), s.server, m); err != nil {
				s.t.Fatalf("raise the serial: %v", err)
			}
		}
	}
}

// away changes what all publish while the primary is away.
func away(s *stand, c *cell, sz size) {
	clusters := s.startAll(sz.clusters, clusterOptions{})
	s.together(c, "before", clusters, func(i int) []record { return []record{{Label: "app", Addresses: []netip.Addr{ip(18, 0, i)}}} })
	s.server.Kill()
	for i, cl := range clusters {
		cl.publish(record{Label: "app", Addresses: []netip.Addr{ip(18, 1, i)}})
	}
	wait := sz.chaos / 2
	pause(wait)
	s.server.Run()
	took, lost, left := s.zoneIs(patience, clusters...)
	c.wrong("after", lost, left)
	c.figure("whole after, seconds", took.Seconds())
	c.Said = fmt.Sprintf("%d clusters, primary away for %s: whole %s after it came back", len(clusters), seconds(wait), seconds(took))
	if took > 10*time.Second {
		c.miss("whole after %s, more than 10 s", seconds(took))
	}
}

// removal freezes a cluster until the others remove it, and thaws it amid that.
func removal(s *stand, c *cell, sz size) {
	o := clusterOptions{Key: s.server.Operator(), Heartbeat: 2, Removal: true, Poll: "500ms"}
	const n = 6
	clusters := s.startAll(n, o)
	publish := func(i int) []record { return []record{{Label: "app", Addresses: []netip.Addr{ip(18, 0, i)}}} }
	s.together(c, "before", clusters, publish)
	var removed, back time.Duration
	for range sz.thaws {
		frozen := clusters[rand.IntN(n)]
		var others []*cluster
		for _, cl := range clusters {
			if cl != frozen {
				others = append(others, cl)
			}
		}
		frozen.process.Stop()
		took, lost, left := s.zoneIs(patience, others...)
		c.wrong("frozen", lost, left)
		removed = max(removed, took)
		frozen.process.Cont()
		took, lost, left = s.zoneIs(patience, clusters...)
		c.wrong("thawed", lost, left)
		back = max(back, took)
	}
	// Half of all are cut off: that is the network, or those that are left.
	for _, cl := range clusters[:n/2] {
		cl.relay.behave(faults{Cut: true})
	}
	pause(20 * time.Second)
	_, lost, left := s.zoneIs(time.Second, clusters...)
	c.wrong("half cut off", lost, left)
	for _, cl := range clusters[:n/2] {
		cl.relay.behave(faults{})
	}
	c.figure("removed after, seconds", removed.Seconds())
	c.figure("back after, seconds", back.Seconds())
	c.Said = fmt.Sprintf("heartbeat 2 s, frozen and thawed %d times: removed after %s, back after %s; half cut off for 20 s: none removed", sz.thaws, seconds(removed), seconds(back))
}
