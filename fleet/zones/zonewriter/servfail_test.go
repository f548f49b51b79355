package zonewriter_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

func every(*dns.Msg) bool { return true }

// beats reports whether an update changes a heartbeat alone.
func beats(m *dns.Msg) bool {
	return !slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return dns.CountLabel(rr.Header().Name) != 2+dns.CountLabel(origin) })
}

// neverFull watches a host's status until done returns nil, and fails if it ever names a set that is full.
func neverFull(t *testing.T, c *cluster, host string, done func(zonewriter.Status) error) {
	t.Helper()
	testutil.Eventually(t, func() error {
		st, _ := c.Status(host)
		if len(st.Unserved) > 0 || slices.ContainsFunc(st.Notes, func(n zone.Conflict) bool { return n.Reason == zone.RRsetFull }) {
			t.Fatalf("a server that fails is taken for one with a full set: %+v", st)
		}
		return done(st)
	})
}

// A server answers SERVFAIL to each update for a while. No set is taken to be full for that, whatever the host has. Each cluster waits as
// for a server that is away, its hosts together, gives the reason, and is whole soon after.
func TestServerFails(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	other := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
	taken := simple("www", "192.0.2.1", "192.0.2.2", "192.0.2.3")
	other.put(t, taken)

	way := new(tap)
	c := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute, Dial: way.dial})
	app := simple("app", "192.0.2.9")
	c.put(t, app)
	way.failAt(every)
	all := []zone.Publication{app, simple("www", "192.0.2.4", "192.0.2.5")}
	for n := range 30 {
		all = append(all, simple(fmt.Sprintf("h%02d", n), "192.0.2.4"))
	}
	c.set(t, all...)
	www := "www." + origin
	neverFull(t, c, www, func(st zonewriter.Status) error {
		return testutil.ErrorIf(st.Conflict == nil || st.Conflict.Reason != "ServerFailed" || way.failed.Load() < 12,
			"%d updates, %+v", way.failed.Load(), st)
	})
	if st, _ := c.Status("h29." + origin); st.Conflict == nil || st.Conflict.Reason != "ServerFailed" || !strings.Contains(st.Conflict.Message, "heartbeat") {
		t.Errorf("a host that waits says %+v", st.Conflict)
	}
	if st, _ := c.Status(app.Host); !st.Programmed {
		t.Errorf("what was read back is doubted: %+v", st)
	}
	if n := way.failed.Load(); n > 20 {
		t.Errorf("%d updates to a server that takes none, want 8, and two for each look after that", n)
	}
	var updates atomic.Int64
	way.failAt(func(*dns.Msg) bool { updates.Add(1); return false })
	for _, p := range all {
		neverFull(t, c, p.Host, func(st zonewriter.Status) error { return testutil.ErrorIf(!st.Programmed, "%+v", st) })
	}
	// When the next try is: TestLongAway. Hosts that each waited by themselves would need an update each.
	if n := updates.Load(); n > 8 {
		t.Errorf("%d updates for %d hosts: they do not wait together", n, len(all))
	}
	exact(t, read(t, s), map[string][]zone.Publication{other.id: {taken}, c.id: all})
}

// A server takes heartbeats, and fails at whatever has to do with one host. That host waits, and no set is taken to be full; the others are
// in the zone.
func TestHostFails(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	other := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
	taken := simple("www", "192.0.2.1", "192.0.2.2", "192.0.2.3")
	other.put(t, taken)

	way := new(tap)
	way.failAt(func(m *dns.Msg) bool {
		return slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Name == "www.cluster02._neardns."+origin })
	})
	c := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute, Dial: way.dial})
	all := []zone.Publication{simple("app", "192.0.2.4"), simple("www", "192.0.2.4"), simple("zzz", "192.0.2.4")}
	c.set(t, all...)
	c.becomes(t, "app."+origin, "")
	c.becomes(t, "zzz."+origin, "")
	neverFull(t, c, "www."+origin, func(st zonewriter.Status) error {
		return testutil.ErrorIf(st.Conflict == nil || st.Conflict.Reason != "ServerFailed", "%+v", st)
	})
	if n := way.failed.Load(); n > 40 {
		t.Errorf("%d updates for a host that the server fails at", n)
	}
	way.failAt(beats) // a server that fails at heartbeats alone keeps nothing waiting
	c.becomes(t, "www."+origin, "")
	exact(t, read(t, s), map[string][]zone.Publication{other.id: {taken}, c.id: all})
}

// What a process finds of the one before it stays its own while a server fails at its changes: the zone is not called rolled back.
func TestFailsAfterRestart(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	o := zonewriter.Options{Identity: id(1), Heartbeat: time.Minute}
	c := start(t, s, o)
	c.put(t, simple("www", "192.0.2.1"))
	c.stop()
	way := new(tap)
	way.failAt(func(m *dns.Msg) bool { return !beats(m) })
	o.Dial = way.dial
	c = start(t, s, o)
	changed := simple("www", "192.0.2.2")
	c.set(t, changed)
	c.becomes(t, changed.Host, "ServerFailed")
	if st, _ := c.Status(changed.Host); len(st.Notes) > 0 {
		t.Errorf("%+v", st.Notes)
	}
	way.failAt(func(*dns.Msg) bool { return false })
	c.clean(t)
	exact(t, read(t, s), map[string][]zone.Publication{c.id: {changed}})
}

// A server that is busy for long, again and again, has no limit either: it takes what it failed at.
func TestServerBusy(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	other := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
	other.put(t, simple("www", "192.0.2.1", "192.0.2.2", "192.0.2.3"))
	way := new(tap)
	var n atomic.Int64
	way.failAt(func(m *dns.Msg) bool { return !beats(m) && n.Add(1)%11 < 9 }) // until it is judged
	c := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute, Dial: way.dial})
	for i := range 4 {
		c.set(t, simple("www", fmt.Sprintf("192.0.2.%d", 10+i)))
		neverFull(t, c, "www."+origin, func(st zonewriter.Status) error { return testutil.ErrorIf(!st.Programmed, "%+v", st) })
	}
}

// A server's limit is learned whatever it is, it is used to the last, and a cluster that begins again next to a full set sees it, too.
func TestAnotherLimit(t *testing.T) {
	s := serve(t, zoneserver.BIND, zoneserver.Config{MaxRecords: 5})
	other := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
	other.put(t, simple("www", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"))
	o := zonewriter.Options{Identity: id(2), Heartbeat: time.Minute}
	full := func(c *cluster) {
		t.Helper()
		c.clean(t)
		st, _ := c.Status("www." + origin)
		if len(st.Unserved) != 2 || len(st.Notes) != 1 || st.Notes[0].Reason != zone.RRsetFull || !strings.Contains(st.Notes[0].Message, " 5 of one type") {
			t.Errorf("%+v", st)
		}
	}
	c := start(t, s, o)
	want := simple("www", "192.0.2.11", "192.0.2.12")
	c.set(t, want)
	full(c)
	// The limit is this host's alone: a small set that the server fails at is not full.
	c.put(t, simple("app", "192.0.2.1"))
	c.stop()
	c = start(t, s, o)
	c.set(t, want)
	full(c)
	st, _ := c.Status("www." + origin)
	if st.Messages > 16 {
		t.Errorf("%d messages to see that a set is full", st.Messages)
	}
	other.Remove("www." + origin)
	testutil.Eventually(t, func() error {
		h := read(t, s).Hosts["www."+origin]
		return testutil.ErrorIf(!slices.Equal(h.Addresses, []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("192.0.2.12")}),
			"room is not used: %v", h.Addresses)
	})
}

// PowerDNS applies what a key may write and drops the rest without a word. What came into the zone by half is not left there: it goes with
// the next change, with the host, also for a process that knows nothing of it, and becomes whole with a key that may write it. The
// neighbour whose key it is keeps an address that both publish.
func TestPartly(t *testing.T) {
	s := serve(t, zoneserver.PowerDNS, zoneserver.Config{Clusters: []string{id(1).Cluster, id(2).Cluster}, Hosts: []string{"www"}})
	www := "www." + origin
	neighbour := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute, Key: keyOf(s.Key(id(1).Cluster))})
	theirs := simple("www", "192.0.2.1")
	neighbour.put(t, theirs)
	alone := map[string][]zone.Publication{neighbour.id: {theirs}}

	var key atomic.Pointer[zoneserver.Key]
	give := func(of string) {
		k := s.Key(of)
		key.Store(&k)
	}
	o := zonewriter.Options{Identity: id(2), Heartbeat: time.Minute, Key: func() (rfc2136.Key, error) { return keyOf(*key.Load())() }}
	served := func(want string) {
		t.Helper()
		var z *zone.State
		testutil.Eventually(t, func() error { // the status may still be that of the message before
			z = read(t, s)
			got := fmt.Sprint(z.Hosts[www].Addresses)
			return testutil.ErrorIf(got != want, "%s is served, want %s", got, want)
		})
		h := z.Hosts[www]
		if len(h.Claims) != 1 || len(z.Beats) != 1 {
			t.Errorf("written with a foreign key: %+v, %+v", h.Claims, z.Beats)
		}
	}
	give(neighbour.id)
	c := start(t, s, o)
	c.set(t, simple("www", "192.0.2.1", "192.0.2.2"))
	c.becomes(t, www, zonewriter.NotPermitted)
	served("[192.0.2.1 192.0.2.2]")
	c.set(t, simple("www", "192.0.2.1", "192.0.2.3"))
	c.becomes(t, www, zonewriter.NotPermitted)
	served("[192.0.2.1 192.0.2.3]")
	c.leave(t, www)
	exact(t, read(t, s), alone)

	c.set(t, simple("www", "192.0.2.1", "192.0.2.4"))
	c.becomes(t, www, zonewriter.NotPermitted)
	c.stop()
	c = start(t, s, o)
	c.leave(t, www)
	exact(t, read(t, s), alone)

	ours := simple("www", "192.0.2.1", "192.0.2.5")
	c.set(t, ours)
	c.becomes(t, www, zonewriter.NotPermitted)
	give(c.id)
	c.clean(t)
	exact(t, read(t, s), map[string][]zone.Publication{neighbour.id: {theirs}, c.id: {ours}})
}
