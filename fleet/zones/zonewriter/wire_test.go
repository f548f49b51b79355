package zonewriter_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// tap notes the kind of each message that a publisher sends, and its updates. It can lose answers, and fail in the server's place.
type tap struct {
	before  func(context.Context) error // a connection is made; nil: nothing
	failed  atomic.Int64                // updates for which fails was true
	mu      sync.Mutex                  // guards what follows
	kinds   []string
	updates []*dns.Msg
	lose    bool                // the answer to the next update
	fails   func(*dns.Msg) bool // called with mu held: the updates that do not reach the server, but get SERVFAIL; nil: none
}

// failAt sets which updates get SERVFAIL.
func (p *tap) failAt(fails func(*dns.Msg) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails = fails
}

func (p *tap) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if p.before != nil {
		if err := p.before(ctx); err != nil {
			return nil, err
		}
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	return &tapped{Conn: c, tap: p}, err
}

// take returns the kinds since the last call.
func (p *tap) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.kinds
	p.kinds = nil
	return all
}

// wantGuards checks that each update of a cluster has its heartbeat as a prerequisite. An update that changes records of the dead cluster
// must also have that cluster's heartbeat: if the cluster is alive after all, its next heartbeat stops the removal.
func (p *tap) wantGuards(t *testing.T, z *zone.State, own, dead string) {
	t.Helper()
	beat := func(cluster string) string { return z.BeatAsRead(cluster)[0].Header().Name }
	at := func(rrs []dns.RR, name string) bool {
		return slices.ContainsFunc(rrs, func(rr dns.RR) bool { return rr.Header().Name == name })
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.updates {
		if !at(m.Answer, beat(own)) {
			t.Errorf("%s: no prerequisite for its own heartbeat:\n%s", own, m)
		}
		removes := slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return strings.Contains(rr.Header().Name, dead) })
		if removes && !at(m.Answer, beat(dead)) {
			t.Errorf("%s removes %s, whatever becomes of its heartbeat:\n%s", own, dead, m)
		}
	}
}

type tapped struct {
	net.Conn
	tap    *tap
	answer []byte // in place of the server's; nil: none; empty: the connection ends
}

func (c *tapped) Read(b []byte) (int, error) {
	if c.answer == nil {
		return c.Conn.Read(b)
	}
	n := copy(b, c.answer)
	if c.answer = c.answer[n:]; n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

func (c *tapped) Write(b []byte) (int, error) {
	var m dns.Msg
	if len(b) > 2 && int(binary.BigEndian.Uint16(b)) == len(b)-2 && m.Unpack(b[2:]) == nil && c.note(&m) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// note notes a message, and reports whether the tap answers it in the server's place.
func (c *tapped) note(m *dns.Msg) bool {
	p := c.tap
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Opcode == dns.OpcodeQuery {
		p.kinds = append(p.kinds, dns.TypeToString[m.Question[0].Qtype])
		return false
	}
	p.kinds, p.updates = append(p.kinds, dns.OpcodeToString[m.Opcode]), append(p.updates, m)
	if p.lose {
		c.answer, p.lose = []byte{}, false
	}
	if p.fails == nil || !p.fails(m) {
		return false
	}
	p.failed.Add(1)
	wire, _ := new(dns.Msg).SetRcode(m, dns.RcodeServerFailure).Pack()
	c.answer = append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
	return true
}

// A change is one message and one look at what became of it. Between changes only the serial is queried, and what this cluster wrote last.
func TestMessages(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	wire := new(tap)
	c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Hour, Poll: time.Hour, Dial: wire.dial})
	c.put(t, simple("www", "192.0.2.1"))
	if got := strings.Join(wire.take(), " "); got != "AXFR UPDATE IXFR" {
		t.Errorf("a join is %s", got)
	}
	c.set(t, simple("www", "192.0.2.1")) // nothing new
	for n := range 3 {
		c.put(t, simple("www", fmt.Sprintf("192.0.2.%d", 2+n)))
		if got := strings.Join(wire.take(), " "); got != "UPDATE IXFR" {
			t.Errorf("a change is %s", got)
		}
	}
	var hosts []zone.Publication
	for n := range 60 { // more than one message, the first of which brings the heartbeat along
		hosts = append(hosts, simple(fmt.Sprintf("h%d", n), "192.0.2.1"))
	}
	many := start(t, s, zonewriter.Options{Identity: id(3), Heartbeat: time.Hour, Poll: time.Hour, Dial: wire.dial}, hosts...)
	many.clean(t)
	many.stop()
	if got := strings.Join(wire.take(), " "); got != "AXFR UPDATE UPDATE UPDATE IXFR" {
		t.Errorf("a join with 60 hosts is %s", got)
	}
	c.stop()
	quiet := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Hour, Dial: wire.dial})
	quiet.put(t, simple("www", "192.0.2.9"))
	wire.take()
	testutil.Eventually(t, func() error {
		wire.mu.Lock()
		defer wire.mu.Unlock()
		return testutil.ErrorIf(len(wire.kinds) < 20, "%v", wire.kinds)
	})
	for _, kind := range wire.take() {
		if kind != "SOA" && kind != "TXT" {
			t.Errorf("a cluster at rest sends %s", kind)
		}
	}
}

// An update that had no answer may still take effect, be it later. The next one brings a heartbeat, which bars it.
func TestUnanswered(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	wire := new(tap)
	c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Hour, Dial: wire.dial})
	c.put(t, simple("www", "192.0.2.1"))
	beat := read(t, s).BeatAsRead(c.id)[0].Header().Name
	withBeat := func(m *dns.Msg) bool {
		return slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Name == beat })
	}
	for n, lose := range []bool{false, true} {
		wire.mu.Lock()
		wire.updates, wire.lose = nil, lose
		wire.mu.Unlock()
		c.put(t, simple("www", fmt.Sprintf("192.0.2.%d", 2+n)))
		testutil.Eventually(t, func() error {
			wire.mu.Lock()
			defer wire.mu.Unlock()
			if len(wire.updates) == 0 || lose && len(wire.updates) < 2 {
				return fmt.Errorf("%d updates", len(wire.updates))
			}
			if withBeat(wire.updates[0]) {
				t.Error("a change brings a heartbeat without need")
			}
			if lose && !withBeat(wire.updates[1]) {
				t.Errorf("nothing bars an update without an answer; what follows is %s", wire.updates[1])
			}
			return nil
		})
	}
}

// An operator deletes a cluster's records by hand. They are written again at once, then ever more rarely, with a reason. A change is
// written as well; TestRepairPause shows that it does not wait for the repair.
func TestOverwritten(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		c := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute})
		c.put(t, simple("www", "192.0.2.1"))
		gone := &dns.ANY{Hdr: dns.RR_Header{Name: "www." + origin, Rrtype: dns.TypeA, Class: dns.ClassANY}}
		there := func(want string) {
			t.Helper()
			testutil.Eventually(t, func() error {
				h := read(t, s).Hosts["www."+origin]
				return testutil.ErrorIf(h == nil || fmt.Sprint(h.Addresses) != want, "%+v, want %s", h, want)
			})
		}
		byHand(t, s, gone)
		there("[192.0.2.1]")
		c.becomes(t, "www."+origin, "")
		byHand(t, s, gone)
		st := c.becomes(t, "www."+origin, zonewriter.RecordsMissing)
		if st.Since.IsZero() || st.Attempt == 0 || !strings.Contains(st.Conflict.Message, "written again at") {
			t.Errorf("%+v, %+v", st, st.Conflict)
		}
		c.set(t, simple("www", "192.0.2.2"))
		there("[192.0.2.2]")
		c.becomes(t, "www."+origin, "")
		if st, _ := c.Status("www." + origin); st.Attempt != 0 || st.Conflict != nil {
			t.Errorf("%+v", st)
		}
	})
}

// An address that another program added by hand, with another TTL, keeps no cluster from the host, and stays. What a cluster has in the
// zone from before its restart goes when it publishes the host again and leaves it.
func TestByHand(t *testing.T) {
	onEach(t, zoneserver.Config{}, func(t *testing.T, s *zoneserver.Server) {
		www := "www." + origin
		addresses := func() (out []string) {
			for _, rr := range read(t, s).Records() {
				if a, ok := rr.(*dns.A); ok && a.Hdr.Name == www {
					out = append(out, fmt.Sprintf("%d %s", a.Hdr.Ttl, a.A))
				}
			}
			slices.Sort(out)
			return out
		}
		byHand(t, s, &dns.A{Hdr: dns.RR_Header{Name: www, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(198, 51, 100, 7)})
		o := zonewriter.Options{Identity: id(1), Heartbeat: time.Minute}
		c := start(t, s, o)
		c.put(t, simple("www", "192.0.2.1"))
		if got := fmt.Sprint(addresses()); got != "[60 192.0.2.1 60 198.51.100.7]" {
			t.Error(got)
		}
		c.stop()
		c = start(t, s, o)
		c.put(t, simple("www", "192.0.2.2"))
		c.leave(t, www)
		if got, h := fmt.Sprint(addresses()), read(t, s).Hosts[www]; got != "[300 198.51.100.7]" || h != nil {
			t.Errorf("%s; %+v", got, h)
		}
	})
}

// Counters go up by what the primary took, exactly. Changes that wait for their turn share a message.
func TestCounted(t *testing.T) {
	s := serve(t, zoneserver.Knot, zoneserver.Config{})
	registry := prometheus.NewRegistry()
	c := start(t, s, zonewriter.Options{Identity: id(1), Metrics: zonewriter.NewMetrics(registry), Poll: time.Hour})
	counters := func() map[string]float64 {
		families, err := registry.Gather()
		testutil.Must(t, err)
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "neardns_zone_"), "_total")
				for _, l := range m.GetLabel() {
					if l.GetName() == "result" {
						name += " " + l.GetValue()
					}
				}
				if m.GetCounter() != nil {
					out[name] = m.GetCounter().GetValue()
				}
			}
		}
		return out
	}
	want := func(when string, want map[string]float64) {
		t.Helper()
		got := counters()
		for _, name := range []string{"writes", "record_spec_updates", "deletes", "prunes", "messages ok"} {
			if got[name] != want[name] {
				t.Errorf("%s: %s is %v, want %v", when, name, got[name], want[name])
			}
		}
	}
	c.put(t, simple("www", "192.0.2.1", "192.0.2.2"))
	want("join", map[string]float64{"writes": 1, "record_spec_updates": 1, "messages ok": 1})
	c.put(t, simple("www", "192.0.2.1", "192.0.2.2"))
	want("nothing new", map[string]float64{"writes": 1, "record_spec_updates": 1, "messages ok": 1})
	// The first message waits behind a primary that hangs. What comes meanwhile for ten hosts is one more.
	s.Process().Stop()
	c.set(t, simple("www", "192.0.2.2"))
	testutil.Eventually(t, func() error {
		st, _ := c.Status("www." + origin)
		return testutil.ErrorIf(st.Messages != 2, "www has %d messages, want 2", st.Messages)
	})
	var burst []zone.Publication
	for i := range 10 {
		burst = append(burst, simple(fmt.Sprintf("h%d", i), "192.0.2.3"))
	}
	for range 3 { // each is changed to and fro, and ends as it began
		for _, p := range burst {
			c.set(t, p)
			other := p
			other.Addresses = slices.Clone(simple("x", "192.0.2.4").Addresses)
			c.set(t, other)
			c.set(t, p)
		}
	}
	s.Process().Cont()
	c.clean(t)
	want("a burst", map[string]float64{"writes": 12, "record_spec_updates": 72, "deletes": 1, "messages ok": 3})
	c.leave(t, "www."+origin)
	want("a leave", map[string]float64{"writes": 13, "record_spec_updates": 73, "deletes": 2, "prunes": 1, "messages ok": 4})
}
