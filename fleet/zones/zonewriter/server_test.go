package zonewriter_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

const origin = zoneserver.DefaultZone

func onEach(t *testing.T, config zoneserver.Config, f func(t *testing.T, s *zoneserver.Server)) {
	for _, kind := range zoneserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := serve(t, kind, config)
			defer func() {
				if t.Failed() {
					t.Log(s.Process().Output())
				}
			}()
			f(t, s)
		})
	}
}

// serve starts a server of one kind, and skips the test where that is not installed.
func serve(t *testing.T, kind zoneserver.Kind, config zoneserver.Config) *zoneserver.Server {
	t.Helper()
	zoneserver.Require(t, kind)
	return zoneserver.Start(t, kind, config)
}

func keyOf(k zoneserver.Key) rfc2136.KeyFunc {
	return func() (rfc2136.Key, error) {
		return rfc2136.Key{Name: k.Name, Algorithm: dns.HmacSHA256, Secret: k.Secret}, nil
	}
}

// cluster is a running publisher.
type cluster struct {
	*zonewriter.Publisher
	id   string
	stop func() // ends it as kill -9 does: nothing is cleaned
}

// start runs a publisher, which begins with pubs.
func start(t *testing.T, s *zoneserver.Server, o zonewriter.Options, pubs ...zone.Publication) *cluster {
	t.Helper()
	o.Zone, o.Server = origin, s.Addr().String()
	if o.Key == nil {
		o.Key = keyOf(s.Operator())
	}
	if o.Poll == 0 {
		o.Poll = 100 * time.Millisecond
	}
	if testing.Verbose() && o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p, err := zonewriter.New(o)
	testutil.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	c := &cluster{p, o.Identity.Cluster, func() { cancel(); wg.Wait() }}
	t.Cleanup(c.stop)
	c.set(t, pubs...)
	wg.Go(func() { p.Run(ctx) })
	return c
}

func id(n int) zone.Identity {
	return zone.Identity{Cluster: fmt.Sprintf("cluster%02d", n), Instance: fmt.Sprintf("i%d", n)}
}

func simple(host string, addrs ...string) zone.Publication {
	p := zone.Publication{Host: host + "." + origin, Strategy: zone.Simple, TTL: 60}
	for _, a := range addrs {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return p
}

func (c *cluster) set(t *testing.T, pubs ...zone.Publication) {
	t.Helper()
	for _, p := range pubs {
		testutil.Must(t, c.Set(p))
	}
}

// put publishes, and waits until that is in the zone.
func (c *cluster) put(t *testing.T, pubs ...zone.Publication) {
	t.Helper()
	c.set(t, pubs...)
	c.clean(t)
}

// leave removes a host, and waits until that is out of the zone.
func (c *cluster) leave(t *testing.T, host string) {
	t.Helper()
	c.Remove(host)
	c.clean(t)
}

// settle waits until the cluster is as it should be, and returns what is in a conflict.
func (c *cluster) settle(t *testing.T) []zonewriter.Status {
	t.Helper()
	conflicts, err := c.Settle(testutil.Context(t))
	if err != nil {
		t.Fatalf("%s: %v; %+v", c.id, err, conflicts)
	}
	return conflicts
}

// clean waits until all is as it should be. A server that is busy for a moment is no fault.
func (c *cluster) clean(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, func() error {
		for _, s := range c.settle(t) {
			return fmt.Errorf("%s: %s: %+v", c.id, s.Host, s.Conflict)
		}
		return nil
	})
}

// operator is a client with the operator's key.
func operator(s *zoneserver.Server) *rfc2136.Client {
	return &rfc2136.Client{Server: s.Addr().String(), Zone: origin, Key: keyOf(s.Operator())}
}

// byHand makes changes with the operator's key, as a person does.
func byHand(t *testing.T, s *zoneserver.Server, changes ...dns.RR) {
	t.Helper()
	testutil.Eventually(t, func() error { return operator(s).Update(t.Context(), nil, changes) }) // PowerDNS may be busy
}

func read(t *testing.T, s *zoneserver.Server) *zone.State {
	t.Helper()
	var rrs []dns.RR
	testutil.Eventually(t, func() (err error) { // BIND answers SERVFAIL to the eleventh transfer at a time
		rrs, err = s.Transfer()
		return err
	})
	st, err := zone.Parse(origin, rrs)
	testutil.Must(t, err)
	return st
}

func cleanAll(t *testing.T, all []*cluster) {
	t.Helper()
	for _, c := range all {
		c.clean(t)
	}
}

// awaitOwners waits until so many clusters own the host www.
func awaitOwners(t *testing.T, s *zoneserver.Server, n int) {
	t.Helper()
	testutil.Eventually(t, func() error {
		h := read(t, s).Hosts["www."+origin]
		return testutil.ErrorIf(len(h.Owners) != n, "owners %v", h.Owners)
	})
}

// exact compares a zone with what the living clusters publish: addresses are the union, references exact, and nothing else is there.
func exact(t *testing.T, st *zone.State, want map[string][]zone.Publication) {
	t.Helper()
	var expected []dns.RR
	for who, pubs := range want {
		for _, p := range pubs {
			expected = append(expected, zonewriter.Published(t, zone.Identity{Cluster: who, Instance: "x"}, p.Normal())...)
		}
	}
	have, should := lines(st.Records()), lines(expected)
	for l := range have {
		if !should[l] {
			t.Errorf("left over: %s", l)
		}
	}
	for l := range should {
		if !have[l] {
			t.Errorf("lost: %s", l)
		}
	}
}

// lines are RRs without what differs from run to run: generations, instances, heartbeats, SOA, NS.
func lines(rrs []dns.RR) map[string]bool {
	out := map[string]bool{}
	for _, rr := range rrs {
		name := strings.ToLower(rr.Header().Name)
		line := rr.String()
		if x, ok := rr.(*dns.TXT); ok {
			kept := slices.DeleteFunc(slices.Clone(x.Txt), func(s string) bool {
				return strings.HasPrefix(s, "gen=") || strings.HasPrefix(s, "inst=")
			})
			if strings.Count(name, ".") == strings.Count("c._neardns."+origin, ".") {
				continue // a heartbeat
			}
			line = name + " TXT " + strings.Join(kept, " ")
		} else if rr.Header().Rrtype == dns.TypeNS || rr.Header().Rrtype == dns.TypeSOA || strings.HasPrefix(name, "ns") {
			continue
		}
		out[line] = true
	}
	return out
}

// A cluster joins, changes and leaves, alone and next to another one that shares an address.
func TestJoinChangeLeave(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		a := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
		b := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute})
		pa, pb := simple("www", "192.0.2.1", "192.0.2.9", "2001:db8::1"), simple("www", "192.0.2.2", "192.0.2.9")
		a.set(t, pa)
		b.set(t, pb)
		a.clean(t)
		b.clean(t)
		exact(t, read(t, s), map[string][]zone.Publication{a.id: {pa}, b.id: {pb}})

		pa = simple("www", "192.0.2.3")
		a.put(t, pa)
		exact(t, read(t, s), map[string][]zone.Publication{a.id: {pa}, b.id: {pb}})

		pb.Addresses = pa.Addresses
		b.put(t, pb)
		a.leave(t, pa.Host)
		exact(t, read(t, s), map[string][]zone.Publication{b.id: {pb}})
		if st, _ := a.Status(pa.Host); !st.Left || st.Programmed {
			t.Errorf("%+v", st)
		}
		b.leave(t, pb.Host)
		exact(t, read(t, s), nil)
		testutil.Eventually(t, func() error { // 18 s after a server that was busy
			b := read(t, s).Beats
			return testutil.ErrorIf(len(b) > 0, "heartbeats stay: %v", b)
		})
	})
}

// Many clusters change one host at once: nothing is lost, nothing left over, and what they add needs no second message.
func TestCrowd(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		const n = 8
		var all []*cluster
		for i := range n {
			all = append(all, start(t, s, zonewriter.Options{Identity: id(i), Heartbeat: time.Hour}))
		}
		round := func(what string, bar float64, pub func(i int) zone.Publication) {
			before, want := uint64(0), map[string][]zone.Publication{}
			for i, c := range all {
				p := pub(i)
				st, _ := c.Status(p.Host)
				before += st.Messages
				if p.Empty() {
					c.Remove(p.Host)
					continue
				}
				want[c.id] = []zone.Publication{p}
				c.set(t, p)
			}
			after := uint64(0)
			for i, c := range all {
				c.clean(t)
				st, _ := c.Status(pub(i).Host)
				after += st.Messages
			}
			exact(t, read(t, s), want)
			t.Logf("%s: %.2f messages a cluster", what, float64(after-before)/n)
			if each := float64(after-before) / n; each > bar && s.Kind() != zoneserver.PowerDNS {
				t.Errorf("%s: %.2f messages a cluster, more than %.2f", what, each, bar)
			}
		}
		own := func(round int) func(int) zone.Publication {
			return func(i int) zone.Publication {
				return simple("www", fmt.Sprintf("192.0.2.%d", 32*round+i), fmt.Sprintf("2001:db8::%d:%d", round, i))
			}
		}
		round("join", 2.5, own(0))
		round("change", 1, own(1))
		round("change to addresses that two share", 1.6, func(i int) zone.Publication { return simple("www", fmt.Sprintf("198.51.100.%d", i/2)) })
		round("change to one address of all", 2.5, func(int) zone.Publication { return simple("www", "203.0.113.1") })
		round("change back, of which only the last deletes", n, own(2))
		round("leave", 2.5, func(int) zone.Publication { return zone.Publication{Host: "www." + origin} })
	})
}
