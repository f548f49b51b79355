package zonewriter_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

func balanced(host, geo string, addrs ...string) zone.Publication {
	p := simple(host, addrs...)
	p.Strategy, p.Geo, p.Weight = zone.LoadBalanced, geo, 1
	return p
}

// becomes waits until a host's conflict has a reason; empty: until it has none and is programmed.
func (c *cluster) becomes(t *testing.T, host string, reason zone.Reason) zonewriter.Status {
	t.Helper()
	var last zonewriter.Status
	testutil.Eventually(t, func() error {
		last, _ = c.Status(host)
		if reason == "" && last.Programmed || last.Conflict != nil && last.Conflict.Reason == reason {
			return nil
		}
		return fmt.Errorf("%s: %s is %+v, conflict %+v, not %q", c.id, host, last, last.Conflict, reason)
	})
	return last
}

// Each cluster has a key that is limited to it, and all levels of both strategies are written with it.
func TestOwnKeys(t *testing.T) {
	config := zoneserver.Config{Clusters: []string{id(1).Cluster, id(2).Cluster}, Hosts: []string{"www", "app"}}
	onEach(t, config, func(t *testing.T, s *zoneserver.Server) {
		var all []*cluster
		want := map[string][]zone.Publication{}
		for i := 1; i <= 2; i++ {
			c := start(t, s, zonewriter.Options{Identity: id(i), Heartbeat: time.Minute, Key: keyOf(s.Key(id(i).Cluster))})
			pubs := []zone.Publication{balanced("www", "ie", "192.0.2.9", fmt.Sprintf("192.0.2.%d", i)), simple("app", fmt.Sprintf("2001:db8::%d", i))}
			c.set(t, pubs...)
			all, want[c.id] = append(all, c), pubs
		}
		cleanAll(t, all)
		exact(t, read(t, s), want)
		moved := balanced("www", "geo-eu", "192.0.2.9")
		all[0].set(t, moved)
		all[0].clean(t)
		want[all[0].id][0] = moved
		exact(t, read(t, s), want)
		for _, c := range all {
			c.Remove("www." + origin)
			c.Remove("app." + origin)
		}
		cleanAll(t, all)
		exact(t, read(t, s), nil)
	})
}

// A key of another cluster ends as NotPermitted, soon and without a storm, whichever way the server refuses.
func TestForeignKey(t *testing.T) {
	config := zoneserver.Config{Clusters: []string{id(1).Cluster, id(2).Cluster}, Hosts: []string{"www"}}
	onEach(t, config, func(t *testing.T, s *zoneserver.Server) {
		c := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute, Key: keyOf(s.Key(id(1).Cluster))})
		c.set(t, simple("www", "192.0.2.1"))
		// PowerDNS's own work holds its database's lock after the start: then each message is sent again.
		if st := c.becomes(t, "www."+origin, zonewriter.NotPermitted); st.Messages > 10 || st.Conflict.Message == "" {
			t.Errorf("%+v, %+v", st, st.Conflict)
		}
		z := read(t, s)
		if h := z.Hosts["www."+origin]; h != nil && len(h.Claims) > 0 || len(z.Beats) > 0 {
			t.Errorf("written with a foreign key: %+v, %+v", h, z.Beats)
		}
		if s.Kind() != zoneserver.PowerDNS { // which applies what it permits and answers NOERROR
			exact(t, z, nil)
		}
	})
}

// Of two strategies that come at once one is there, and the other cluster writes nothing until it may.
func TestTwoStrategies(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Hour})
		b := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Hour})
		for round := range 5 {
			host := fmt.Sprintf("h%d", round)
			pa, pb := simple(host, "192.0.2.1"), balanced(host, "ie", "192.0.2.2")
			before := map[string]uint64{}
			a.set(t, pa)
			b.set(t, pb)
			var winner, loser *cluster
			testutil.Eventually(t, func() error {
				sa, _ := a.Status(pa.Host)
				sb, _ := b.Status(pb.Host)
				switch {
				case sa.Programmed && sb.Conflict != nil:
					winner, loser = a, b
				case sb.Programmed && sa.Conflict != nil:
					winner, loser = b, a
				default:
					return fmt.Errorf("%+v, %+v", sa, sb)
				}
				return nil
			})
			st := loser.becomes(t, pa.Host, zone.ConflictingStrategy)
			if st.Writes != before[loser.id] || st.Since.IsZero() || !strings.Contains(st.Conflict.Message, winner.id) {
				t.Errorf("the loser: %+v, %+v", st, st.Conflict)
			}
			if z := read(t, s); len(z.Hosts[pa.Host].Owners) != 1 {
				t.Errorf("owners %v", z.Hosts[pa.Host].Owners)
			}
			winner.Remove(pa.Host)
			loser.becomes(t, pa.Host, "")
			winner.clean(t)
			loser.leave(t, pa.Host)
			if round == 4 {
				exact(t, read(t, s), nil)
			}
		}
	})
}

// A cloned cluster stops at its first write, whether it has an instance of its own or was copied with it.
func TestClone(t *testing.T) {
	for _, instance := range []string{"i1", "copy"} {
		t.Run(instance, func(t *testing.T) {
			s := serve(t, zoneserver.Knot, zoneserver.Config{})
			a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Hour})
			a.put(t, simple("www", "192.0.2.1"))
			clone := start(t, s, zonewriter.Options{Identity: zone.Identity{Cluster: id(1).Cluster, Instance: instance}, Heartbeat: time.Hour})
			clone.set(t, simple("www", "192.0.2.2"))
			if instance != "i1" {
				if st := clone.becomes(t, "www."+origin, zone.ClusterIDInUse); st.Messages != 0 {
					t.Errorf("%+v", st)
				}
				return
			}
			// Of two that cannot be distinguished the one that was there first stops: it sees a claim that it did not write.
			clone.becomes(t, "www."+origin, "")
			if st := a.becomes(t, "www."+origin, zone.ClusterIDInUse); st.Writes != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A cluster that was installed again, into another namespace, is another instance. It writes nothing as long as the old one may live, and
// has the old one's hosts when that has been silent for six heartbeats.
func TestTakeover(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	old := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Second})
	old.put(t, simple("www", "192.0.2.1"), simple("forgotten", "192.0.2.1"))
	again := zone.Identity{Cluster: id(1).Cluster, Instance: "fresh"}
	fresh := start(t, s, zonewriter.Options{Identity: again, Heartbeat: time.Second, Poll: 2 * time.Second}) // a silence may have gaps
	p := simple("www", "192.0.2.2")
	fresh.set(t, p)
	fresh.becomes(t, p.Host, zone.ClusterIDInUse)
	beats := map[zone.Beat]bool{}
	testutil.Eventually(t, func() error { // more than six heartbeats of one that lives
		if st, _ := fresh.Status(p.Host); st.Messages > 0 || st.Programmed {
			t.Fatalf("the old one lives: %+v", st)
		}
		beats[fresh.Zone().State.Beats[old.id]] = true
		return testutil.ErrorIf(len(beats) < 5, "%d heartbeats were seen", len(beats))
	})
	old.stop()
	testutil.Within(t, 5*testutil.Patience(), func() error { // as TestRemoval: each gap of four seconds begins the silence again
		st, _ := fresh.Status(p.Host)
		return testutil.ErrorIf(!st.Programmed, "%+v", st)
	})
	fresh.leave(t, "forgotten."+origin)
	exact(t, read(t, s), map[string][]zone.Publication{again.Cluster: {p}})
}

// A dead cluster is removed by one of the others, whole and exact; it joins again when it comes back. If two of four clusters are silent,
// none is removed.
func TestRemoval(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	var all []*cluster
	want := map[string][]zone.Publication{}
	var taps [4]tap
	for i := range 4 {
		c := start(t, s, zonewriter.Options{Identity: id(i), Heartbeat: time.Second, Remove: true, Dial: taps[i].dial})
		pubs := []zone.Publication{balanced("www", "ie", fmt.Sprintf("192.0.2.%d", i), "192.0.2.100")}
		if i == 3 {
			pubs = append(pubs, simple("alone", "192.0.2.3"))
		}
		c.set(t, pubs...)
		all, want[c.id] = append(all, c), pubs
	}
	cleanAll(t, all)
	all[3].stop()
	want[all[3].id] = want[all[3].id][1:] // the only address of its host stays
	awaitOwners(t, s, 3)
	exact(t, read(t, s), want)
	for i := range taps[:3] {
		taps[i].wantGuards(t, read(t, s), all[i].id, all[3].id)
	}
	back := start(t, s, zonewriter.Options{Identity: id(3), Heartbeat: time.Second, Remove: true})
	p := balanced("www", "ie", "192.0.2.3", "192.0.2.100")
	back.put(t, p, simple("alone", "192.0.2.3"))
	want[back.id] = append(want[back.id], p)
	exact(t, read(t, s), want)

	back.stop()
	all[0].stop()
	beats := map[zone.Beat]bool{}
	testutil.Within(t, 5*testutil.Patience(), func() error { // twice as many of those that live as a dead cluster's removal waits for
		if state := all[1].Zone().State; state != nil {
			beats[state.Beats[all[1].id]] = true
		}
		// A cluster that could not look for a while sees a silence begin.
		return testutil.ErrorIf(len(beats) < 2*zone.RemoveAfter || len(all[1].Zone().Dead) != 2, "%d heartbeats were seen", len(beats))
	})
	exact(t, read(t, s), want)
}

// A neighbour that changes one host's bookkeeping before each of a cluster's messages keeps that host waiting, and no other of the message.
func TestBusyNeighbour(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		neighbour := operator(s)
		var busy atomic.Bool
		changes := 0
		wire := &tap{before: func(ctx context.Context) error {
			if busy.Load() {
				rr := func(class uint16, n int) dns.RR {
					return &dns.TXT{Hdr: dns.RR_Header{Name: "192-0-2-1.a0.r._shared._neardns." + origin, Rrtype: dns.TypeTXT, Class: class}, Txt: []string{fmt.Sprintf("n%d", n)}}
				}
				for neighbour.Update(ctx, nil, []dns.RR{rr(dns.ClassNONE, changes), rr(dns.ClassINET, changes+1)}) != nil && ctx.Err() == nil {
					continue // PowerDNS answers SERVFAIL now and then
				}
				changes++
			}
			return nil
		}}
		c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute, Dial: wire.dial})
		hosts := []string{"a0", "b1", "b2", "b3", "b4", "b5"}
		for _, h := range hosts {
			c.set(t, simple(h, "192.0.2.1"))
		}
		c.clean(t)
		busy.Store(true)
		for _, h := range hosts {
			c.set(t, simple(h, "192.0.2.2"))
		}
		for _, h := range hosts[1:] {
			c.becomes(t, h+"."+origin, "")
		}
		c.becomes(t, "a0."+origin, zonewriter.Contended)
		busy.Store(false)
		c.becomes(t, "a0."+origin, "")
	})
}

// A wildcard with a choice is published on servers as the document has them configured: BIND checks names by default. A wildcard that is
// full has its other addresses at the cluster's level.
func TestWildcard(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
		for _, host := range []string{"*.shop", "*"} {
			c.set(t, balanced(host, "ie", "192.0.2.1", "2001:db8::1"))
		}
		many := simple("*.many")
		for i := range 120 {
			many.Addresses = append(many.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
		}
		c.put(t, many)
		z := read(t, s)
		for _, host := range []string{"*.shop", "*"} {
			if h := z.Hosts[host+"."+origin]; len(h.Levels["ie"]) != 2 || len(h.Levels[c.id]) != 2 {
				t.Errorf("%+v", h)
			}
		}
		if h := z.Hosts[many.Host]; len(h.Held()) != 120 {
			t.Errorf("%d of 120 addresses are in the zone", len(h.Held()))
		}
	})
}
