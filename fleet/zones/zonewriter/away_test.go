package zonewriter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
	"github.com/neardns/neardns/pkg/tick"
)

// A zone that was restored from a backup is whole again within seconds, and what was left meanwhile is left again.
func TestRestore(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
		b := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute})
		a.put(t, simple("www", "192.0.2.1"), simple("old", "192.0.2.1"))
		restore := s.Snapshot()
		pa, pb := simple("www", "192.0.2.3"), simple("www", "192.0.2.4")
		a.set(t, pa)
		b.set(t, pb)
		a.leave(t, "old."+origin)
		b.clean(t)
		restore()
		testutil.Eventually(t, func() error {
			z := read(t, s)
			h := z.Hosts["www."+origin]
			return testutil.ErrorIf(h == nil || len(h.Addresses) != 2 || h.Addresses[0] != netip.MustParseAddr("192.0.2.3") || z.Hosts["old."+origin] != nil,
				"%+v, %+v", h, z.Hosts["old."+origin])
		})
		a.clean(t)
		b.clean(t)
		exact(t, read(t, s), map[string][]zone.Publication{a.id: {pa}, b.id: {pb}})
	})
}

// BIND takes 100 RRs in a set as installed. A host that is full serves as many, the others are named, no cluster tries on and on, and room
// that becomes free is used.
func TestFull(t *testing.T) {
	s := serve(t, zoneserver.BIND, zoneserver.Config{})
	var all []*cluster
	for i := range 2 {
		c := start(t, s, zonewriter.Options{Identity: id(i), Heartbeat: time.Minute})
		p := simple("www")
		for n := range 75 {
			p.Addresses = append(p.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(100*i + n)}))
		}
		c.set(t, p)
		all = append(all, c)
	}
	cleanAll(t, all)
	z := read(t, s)
	if h := z.Hosts["www."+origin]; len(h.Addresses) != 100 || len(h.Held()) != 150 || len(h.References) != 150 {
		t.Errorf("%d served, %d held", len(h.Addresses), len(h.Held()))
	}
	unserved, messages := 0, uint64(0)
	for _, c := range all {
		st, _ := c.Status("www." + origin)
		unserved += len(st.Unserved)
		messages += st.Messages
		if len(st.Unserved) > 0 && (len(st.Notes) != 1 || st.Notes[0].Reason != zone.RRsetFull || !strings.Contains(st.Notes[0].Message, "max-records-per-type")) {
			t.Errorf("%+v", st.Notes)
		}
	}
	if unserved != 50 || messages > 24 {
		t.Errorf("%d addresses have no room, %d messages", unserved, messages)
	}
	all[0].Remove("www." + origin)
	all[0].clean(t)
	testutil.Eventually(t, func() error {
		h := read(t, s).Hosts["www."+origin]
		return testutil.ErrorIf(len(h.Addresses) != 75 || len(h.Levels) != 0, "%d served, levels %v", len(h.Addresses), h.Levels)
	})
}

// While the primary is away, what is to be written waits, and is there soon after. How often it is tried: TestLongAway.
func TestAway(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute, Poll: 20 * time.Millisecond})
		a.put(t, simple("www", "192.0.2.1"))
		s.Kill()
		testutil.Eventually(t, func() error { return testutil.ErrorIf(a.Zone().Err == nil, "the zone has no error") })
		if st, _ := a.Status("www." + origin); !st.Programmed {
			t.Errorf("what was read back is doubted: %+v", st)
		}
		changed := simple("www", "192.0.2.2")
		a.set(t, changed)
		a.becomes(t, "www."+origin, "Unreachable")
		s.Run()
		a.becomes(t, "www."+origin, "")
		exact(t, read(t, s), map[string][]zone.Publication{a.id: {changed}})
	})
}

// A cluster that was cut off for so long that others removed it is back as soon as its way is, however often that happens: no other fights
// it. How soon a cluster queries a primary that was away: TestLongAway.
func TestCutOff(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	var cut atomic.Bool
	var all []*cluster
	want := map[string][]zone.Publication{}
	for i := range 4 {
		o := zonewriter.Options{Identity: id(i), Heartbeat: time.Second, Remove: true}
		if i == 3 {
			o.Dial = (&tap{before: func(context.Context) error { return testutil.ErrorIf(cut.Load(), "cut off") }}).dial
		}
		c, p := start(t, s, o), simple("www", fmt.Sprintf("192.0.2.%d", i))
		c.set(t, p)
		all, want[c.id] = append(all, c), []zone.Publication{p}
	}
	cleanAll(t, all)
	for range 2 {
		cut.Store(true)
		awaitOwners(t, s, 3)
		cut.Store(false)
		awaitOwners(t, s, 4)
		exact(t, read(t, s), want)
	}
}

// Clusters change out of a small pool of addresses, are killed and come back, the primary is killed, stopped and goes on: when all rest,
// the zone is what those who live publish.
func TestChaos(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		r := rand.New(rand.NewPCG(1, 1))
		const n = 6
		hosts := []string{"www", "app"}
		options := func(i int) zonewriter.Options {
			return zonewriter.Options{Identity: id(i), Heartbeat: 5 * time.Second, Timeout: time.Second, Poll: 50 * time.Millisecond}
		}
		all, want := make([]*cluster, n), make([]map[string]zone.Publication, n)
		for i := range n {
			all[i], want[i] = start(t, s, options(i)), map[string]zone.Publication{}
		}
		apply := func(i int) {
			for _, h := range hosts {
				if p, ok := want[i][h]; ok {
					all[i].set(t, p)
				} else {
					all[i].Remove(h + "." + origin)
				}
			}
		}
		var stops sync.WaitGroup
		defer stops.Wait()
		for range 60 {
			i, h := r.IntN(n), hosts[r.IntN(len(hosts))]
			switch r.IntN(12) {
			case 0, 1:
				all[i].stop()
				all[i] = start(t, s, options(i))
				apply(i)
			case 2:
				s.Kill()
				s.Run()
			case 3:
				stopped := s.Process() // another one may run when the time comes
				stopped.Signal(syscall.SIGSTOP)
				length := time.Duration(r.IntN(1500)) * time.Millisecond
				stops.Go(func() {
					tick.Pause(t.Context(), length)
					stopped.Signal(syscall.SIGCONT)
				})
			case 4:
				delete(want[i], h)
				apply(i)
			default:
				var addrs []string
				for range 1 + r.IntN(2) {
					addrs = append(addrs, fmt.Sprintf("192.0.2.%d", r.IntN(5)))
				}
				want[i][h] = balanced(h, []string{"ie", "geo-eu"}[r.IntN(2)], addrs...).Normal()
				apply(i)
			}
			tick.Pause(t.Context(), time.Duration(r.IntN(60))*time.Millisecond)
		}
		s.Process().Signal(syscall.SIGCONT)
		for i := range n {
			apply(i)
		}
		expected := map[string][]zone.Publication{}
		for i, c := range all {
			testutil.Eventually(t, func() error {
				for _, h := range hosts {
					_, wanted := want[i][h]
					if st, _ := c.Status(h + "." + origin); wanted && !st.Programmed || !wanted && !st.Left {
						return fmt.Errorf("%s: %+v, %+v", c.id, st, st.Conflict)
					}
				}
				return nil
			})
			for _, p := range want[i] {
				expected[c.id] = append(expected[c.id], p)
			}
		}
		exact(t, read(t, s), expected)
	})
}

// A neighbour may fill the zone, a bit at a time or with few large records: it is not read any more, so that it takes no more memory, its
// records stay as they are, and the publisher goes on when there is room again.
func TestTooLarge(t *testing.T) {
	for name, grow := range map[string]struct {
		names, octets int // of each change
	}{"many records": {10, 1}, "large records": {1, 2500}} {
		t.Run(name, func(t *testing.T) {
			onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
				c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute, Records: 60})
				c.put(t, simple("www", "192.0.2.1"))
				var added []dns.RR
				txt := slices.Repeat([]string{strings.Repeat("x", min(grow.octets, 250))}, max(grow.octets/250, 1))
				for range 8 {
					var step []dns.RR
					for range grow.names {
						step = append(step, &dns.TXT{Hdr: dns.RR_Header{Name: fmt.Sprintf("n%d.%s", len(added)+len(step), origin), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60}, Txt: txt})
					}
					byHand(t, s, step...)
					added = append(added, step...)
					testutil.Eventually(t, func() error { // by increments where the server has them
						z := c.Zone()
						serial, err := operator(s).Serial(t.Context())
						return testutil.ErrorIf(err != nil || z.Err == nil && z.State.Serial != serial, "serial %d was read: %w", z.State.Serial, err)
					})
				}
				changed := simple("www", "192.0.2.2")
				c.set(t, changed)
				c.becomes(t, changed.Host, "TooLarge")
				if n := len(c.Zone().State.Records()); n > 60+grow.names { // what the last increment brought comes on top
					t.Errorf("%d records are kept", n)
				}
				if h := read(t, s).Hosts[changed.Host]; len(h.Addresses) != 1 || h.Addresses[0] != netip.MustParseAddr("192.0.2.1") {
					t.Errorf("the zone has %v", h.Addresses)
				}
				for some := range slices.Chunk(added, 10) {
					for i, rr := range some {
						some[i] = &dns.ANY{Hdr: dns.RR_Header{Name: rr.Header().Name, Rrtype: dns.TypeANY, Class: dns.ClassANY}}
					}
					byHand(t, s, some...)
				}
				c.clean(t)
				exact(t, read(t, s), map[string][]zone.Publication{c.id: {changed}})
			})
		})
	}
}
