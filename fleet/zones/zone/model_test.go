package zone

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

var (
	modelSteps = flag.Int("steps", 15_000, "steps of TestModel")
	modelSeed  = flag.Uint64("seed", 1, "seed of TestModel's first episode")
)

// model is a zone whose server loses answers, delays and repeats messages, restores an older zone, shows what it took late, and bounds
// sets; and the clusters that write it, each field of which changes at any moment.
type model struct {
	*testing.T
	*primary
	r       *rand.Rand
	cap     int
	adopt   bool
	foreign []dns.RR
	hosts   []string
	writers []*writer
	shown   *State    // what a server that signs late shows
	queue   []Message // on their way, or repeated
	backup  map[string][]dns.RR
}

// TestModel: no record that a person made is lost, and the zone is what the clusters want once they rest. No disagreement holds back an
// address, except of a cluster that is new at a host and wants another strategy.
func TestModel(t *testing.T) {
	const episode = 100
	t.Logf("%d steps from seed %d", *modelSteps, *modelSeed)
	var seed uint64
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("go test -run TestModel -steps %d -seed %d", episode, seed)
		}
	})
	for i := range uint64(max(1, *modelSteps/episode)) {
		seed = *modelSeed + i
		m := newModel(t, seed)
		for range episode {
			m.step()
		}
		m.rest()
		if t.Failed() {
			return
		}
	}
}

func newModel(t *testing.T, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 2))
	m := &model{T: t, primary: &primary{t, map[string][]dns.RR{}}, r: r, adopt: r.IntN(3) == 0,
		hosts: []string{"www.example.org.", origin, "*.example.org."}, foreign: rrs(t, "www.example.org. 300 IN A 192.0.2.1",
			"www.example.org. 300 IN A 198.51.100.1", "mail.example.org. 60 IN A 192.0.2.1")}
	if r.IntN(3) == 0 {
		m.cap = 6
	}
	for _, rr := range m.foreign {
		m.add(rr)
	}
	strategy := []Strategy{Simple, LoadBalanced}[r.IntN(2)]
	for i := range 3 + r.IntN(3) {
		w := &writer{Writer: Writer{Identity: Identity{fmt.Sprintf("cluster%d", i), "x"}, Limit: m.cap}, want: map[string]Publication{}, memory: map[string]Memory{}}
		for _, h := range m.hosts {
			w.want[h] = Publication{Host: h, Strategy: strategy}
		}
		w.fence(m.primary)
		m.writers = append(m.writers, w)
	}
	m.shown, m.backup = m.read(), copied(m.sets)
	return m
}

func copied(sets map[string][]dns.RR) map[string][]dns.RR {
	out := maps.Clone(sets)
	for name, set := range out {
		out[name] = slices.Clone(set)
	}
	return out
}

// edit changes one field of what a cluster wants.
func (m *model) edit(p Publication) Publication {
	if p.Empty() {
		p.TTL, p.Addresses = 60, []netip.Addr{m.address()}
		return p
	}
	switch field := m.r.IntN(9); {
	case field == 0:
		return Publication{Host: p.Host, Strategy: p.Strategy}
	case field == 1:
		p.TTL = uint32(60 * (1 + m.r.IntN(3)))
	case field == 2:
		p.Health = []*Health{nil, {Protocol: TCP, Port: 1}}[m.r.IntN(2)]
	case field == 3:
		p.Adopt = m.adopt && m.r.IntN(2) == 0
	case field == 5:
		p.Strategy = []Strategy{Simple, LoadBalanced}[m.r.IntN(2)]
		p = p.under(p.Strategy)
		if p.Empty() {
			p.Addresses = []netip.Addr{m.address()}
		}
	case field == 6 && p.Strategy == LoadBalanced:
		p.Addresses, p.Target = nil, "lb.example.com."
	case field == 4 && p.Strategy == LoadBalanced:
		p.Geo, p.Weight = []string{"", "ie", "geo-eu"}[m.r.IntN(3)], uint32(m.r.IntN(3))
		p.DefaultGeo = p.Geo != "" && m.r.IntN(2) == 0
	default:
		p.Addresses, p.Target = nil, ""
		for range 1 + m.r.IntN(4) {
			p.Addresses = append(p.Addresses, m.address())
		}
	}
	return p.Normal()
}

func (m *model) address() netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + m.r.IntN(12))})
}

// take is the server: a message that makes a set too large fails as a whole.
func (m *model) take(msg Message) bool {
	before := copied(m.sets)
	if !m.update(msg) {
		return false
	}
	for _, rr := range msg.Changes {
		if name := rr.Header().Name; m.cap > 0 && len(m.matching(name, dns.TypeA)) > m.cap {
			m.sets = before
			return false
		}
	}
	return true
}

func (m *model) step() {
	w, host := m.writers[m.r.IntN(len(m.writers))], m.hosts[m.r.IntN(len(m.hosts))]
	switch m.r.IntN(12) {
	case 0, 1, 2:
		w.want[host] = m.edit(w.want[host])
	case 3:
		m.shown = m.read()
	case 4:
		w.state = m.shown
	case 5:
		w.state = m.read()
	case 6: // the process ends, and starts with what its cluster wants
		w.memory, w.state, w.fenced = map[string]Memory{}, m.read(), false
	case 7: // lost, late, or taken without an answer
		if msg, _ := w.send(host); !msg.Empty() {
			w.fenced = false
			if m.queue = append(m.queue, msg); m.r.IntN(2) == 0 {
				m.take(msg)
			}
		}
	case 8:
		if len(m.queue) > 0 {
			m.take(m.queue[m.r.IntN(len(m.queue))])
		}
	case 9:
		if m.r.IntN(10) == 0 {
			m.sets, m.queue = copied(m.backup), nil
		} else if m.r.IntN(5) == 0 {
			m.backup = copied(m.sets)
		}
	default:
		if msg, _ := w.send(host); !msg.Empty() && m.take(msg) {
			w.fence1()
		}
	}
	m.kept(false)
}

// kept checks a person's records: with their TTLs once no cluster publishes their host.
func (m *model) kept(exact bool) {
	for _, rr := range m.foreign {
		if m.adopt && rr == m.foreign[0] {
			continue
		}
		if !slices.ContainsFunc(m.sets[rr.Header().Name], func(x dns.RR) bool {
			return dns.IsDuplicate(x, rr) && (!exact || x.Header().Ttl == rr.Header().Ttl)
		}) {
			m.Errorf("a person's record is not as before: %s", rr)
		}
	}
}

// settle has all clusters send in turns until none has anything to say.
func (m *model) settle() {
	for range 30 {
		said := false
		for _, w := range m.writers {
			for _, h := range m.hosts {
				w.state = m.read()
				msg, st := w.send(h)
				if st.Conflict != nil && (st.Conflict.Reason != ConflictingStrategy || m.publishes(w, h)) {
					m.Fatalf("%s: %s is held back: %+v", w.Cluster, h, st.Conflict)
				}
				if !msg.Empty() {
					said = true
					if !m.take(msg) {
						m.Fatalf("%s: a message that was planned on the zone as it is fails: %+v", w.Cluster, msg)
					}
					w.memory[h] = Memory{Generation: w.memory[h].Generation}
					if !m.plain() {
						continue
					}
					after := m.read()
					if left, again := after.Dropped(&st), after.Plan(w.Writer, w.memory[h], w.want[h]); left != nil || !again.Done() {
						m.Fatalf("%s: %s is not at rest after one message: dropped %v, %+v", w.Cluster, h, left, again)
					}
				}
			}
		}
		if !said {
			return
		}
	}
	m.Fatal("they never rest")
}

// publishes reports whether a cluster publishes a host.
func (m *model) publishes(w *writer, host string) bool {
	h := m.read().Hosts[host]
	return h != nil && slices.Contains(h.Owners, w.Cluster)
}

// waits reports whether a cluster's host waits, once all rest: it does not publish the host, and wants another strategy than a cluster that
// does.
func (m *model) waits(w *writer, host string) bool {
	return !m.publishes(w, host) && slices.ContainsFunc(m.writers, func(o *writer) bool {
		return m.publishes(o, host) && o.want[host].Strategy != w.want[host].Strategy
	})
}

func (m *model) rest() {
	for _, w := range m.writers {
		w.memory, w.fenced = map[string]Memory{}, false
		w.fence(m.primary)
	}
	m.settle()
	m.published()
	strategy := []Strategy{Simple, LoadBalanced}[m.r.IntN(2)]
	for _, w := range m.writers { // in the end all want the same TTL and strategy
		for h, p := range w.want {
			if !p.Empty() {
				p.TTL = 300
				w.want[h] = p.under(strategy)
			}
		}
	}
	m.settle()
	m.published()
	m.exact()
	for _, h := range m.read().Hosts {
		if h.TTL != 300 || h.Strategy != strategy {
			m.Errorf("%s is %s with the TTL %d; all want %s and 300", h.Name, h.Strategy, h.TTL, strategy)
		}
		for _, w := range m.writers {
			if p := w.want[h.Name]; p.Target != h.Targets[w.Cluster] {
				m.Errorf("%s of %s is %q, not %q", h.Name, w.Cluster, h.Targets[w.Cluster], p.Target)
			}
		}
	}
	for _, w := range m.writers {
		for h := range w.want {
			w.want[h] = Publication{Host: h}
		}
	}
	m.settle()
	m.kept(true)
	for _, msg := range m.queue {
		if m.take(msg) {
			m.Errorf("a message from before the heartbeat took effect after it:\n%v", msg)
		}
	}
	for _, rr := range m.records() {
		if pl := (names{origin}).place(rr.Header().Name); pl.kind != beatName && !slices.ContainsFunc(m.foreign, func(x dns.RR) bool { return dns.IsDuplicate(x, rr) }) {
			m.Errorf("left over: %s", rr)
		}
	}
}

// plain reports that no set is bounded, which gets what fits, and that no person's record is adopted: what is published is what is wanted.
func (m *model) plain() bool { return m.cap == 0 && !m.adopt }

// exact checks that the zone has the records of what the clusters want and a person's, to the RR, and no other.
func (m *model) exact() {
	if !m.plain() {
		return
	}
	want, have := m.foreign, map[string]bool{}
	for _, w := range m.writers {
		for _, pub := range w.want {
			if !pub.Empty() {
				want = append(slices.Clip(want), compose(origin, Claim{Publication: pub, Identity: w.Identity})...)
			}
		}
	}
	for _, rr := range m.records() {
		line := asPublished(rr)
		have[line] = (names{origin}).place(rr.Header().Name).kind == beatName || strings.Contains(line, stoodBefore)
	}
	for _, rr := range want {
		if _, ok := have[asPublished(rr)]; !ok {
			m.Errorf("lost: %s", rr)
		}
		have[asPublished(rr)] = true
	}
	for line, expected := range have {
		if !expected {
			m.Errorf("left over: %s", line)
		}
	}
}

// asPublished is a record without its generation, and without the TTL of a person's records.
func asPublished(rr dns.RR) string {
	c := dns.Copy(rr)
	if x, ok := c.(*dns.TXT); ok {
		x.Txt = slices.DeleteFunc(slices.Clone(x.Txt), func(s string) bool { return strings.HasPrefix(s, "gen=") || strings.HasPrefix(s, "a=") })
	}
	return c.String()
}

// published checks that each address is at the host or at its cluster's level, and that no other is.
func (m *model) published() {
	s := m.read()
	for _, name := range m.hosts {
		h, want := s.Hosts[name], map[netip.Addr]bool{}
		for _, w := range m.writers {
			if m.waits(w, name) {
				continue
			}
			for _, a := range w.want[name].Addresses {
				if want[a] = true; h == nil || !h.Has(w.Cluster, a) {
					m.Errorf("%s: %s of %s is not in the zone", name, a, w.Cluster)
				}
			}
		}
		if h == nil {
			continue
		}
		for _, a := range h.Held() {
			if !want[a] && !slices.ContainsFunc(m.foreign, func(rr dns.RR) bool { x, _ := addressOf(rr); return x == a && rr.Header().Name == name }) {
				m.Errorf("%s: %s is in the zone, and no cluster wants it", name, a)
			}
		}
	}
}
