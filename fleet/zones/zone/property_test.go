package zone

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// primary takes messages as RFC 2136 requires (sections 3.2 and 3.4.2), whole or not at all.
type primary struct {
	t    testing.TB
	sets map[string][]dns.RR // by name
}

func (p *primary) matching(name string, rrtype uint16) (out []dns.RR) {
	for _, rr := range p.sets[name] {
		if rr.Header().Rrtype == rrtype {
			out = append(out, rr)
		}
	}
	return out
}

func plainRR(rr dns.RR) dns.RR {
	c := dns.Copy(rr)
	c.Header().Class, c.Header().Ttl = dns.ClassINET, 0
	return c
}

func same(a, b []dns.RR) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x dns.RR) bool {
		return !slices.ContainsFunc(b, func(y dns.RR) bool { return dns.IsDuplicate(plainRR(x), plainRR(y)) })
	})
}

// holds checks the prerequisites.
func (p *primary) holds(prereqs []dns.RR) bool {
	type key struct {
		name   string
		rrtype uint16
	}
	exact := map[key][]dns.RR{}
	for _, rr := range prereqs {
		h := rr.Header()
		switch h.Class {
		case dns.ClassNONE:
			if len(p.matching(h.Name, h.Rrtype)) > 0 {
				return false
			}
		case dns.ClassINET:
			if h.Ttl != 0 {
				p.t.Errorf("a prerequisite with a TTL is a FORMERR: %s", rr)
			}
			exact[key{h.Name, h.Rrtype}] = append(exact[key{h.Name, h.Rrtype}], rr)
		default:
			p.t.Errorf("prerequisite %s", rr)
		}
	}
	for k, rrs := range exact {
		if !same(rrs, p.matching(k.name, k.rrtype)) {
			return false
		}
	}
	return true
}

func (p *primary) update(m Message) bool {
	if !p.holds(m.Prereqs) {
		return false
	}
	for _, rr := range m.Changes {
		h := rr.Header()
		switch h.Class {
		case dns.ClassANY:
			p.sets[h.Name] = slices.DeleteFunc(p.sets[h.Name], func(x dns.RR) bool { return x.Header().Rrtype == h.Rrtype })
		case dns.ClassNONE:
			p.sets[h.Name] = slices.DeleteFunc(p.sets[h.Name], func(x dns.RR) bool { return dns.IsDuplicate(x, plainRR(rr)) })
		case dns.ClassINET:
			p.add(rr)
		}
		if len(p.sets[h.Name]) == 0 {
			delete(p.sets, h.Name)
		}
	}
	return true
}

// add does as all three servers do: nothing next to a CNAME, and one TTL for a set.
func (p *primary) add(rr dns.RR) {
	h := rr.Header()
	isName := h.Rrtype == dns.TypeCNAME
	for _, x := range p.sets[h.Name] {
		if (x.Header().Rrtype == dns.TypeCNAME) != isName {
			return
		}
	}
	set := slices.DeleteFunc(slices.Clone(p.sets[h.Name]), func(x dns.RR) bool {
		return dns.IsDuplicate(x, rr) || isName && x.Header().Rrtype == dns.TypeCNAME
	})
	for i, x := range set {
		if x.Header().Rrtype == h.Rrtype {
			set[i] = dns.Copy(x)
			set[i].Header().Ttl = h.Ttl
		}
	}
	p.sets[h.Name] = append(set, dns.Copy(rr))
}

func (p *primary) records() (all []dns.RR) {
	for _, rrs := range p.sets {
		all = append(all, rrs...)
	}
	return all
}

func (p *primary) read() *State { return parsed(p.t, p.records()...) }

// writer is one cluster: what it wants, what it remembers, and what it read last, perhaps long ago.
type writer struct {
	Writer
	want   map[string]Publication
	memory map[string]Memory
	state  *State
	sent   uint64 // of the heartbeat
	fenced bool   // nothing that was sent before can take effect any more
}

// send plans one host on what was read and returns the message, with the heartbeat as the loop adds it: as a prerequisite, and with the
// next one where an earlier message may be on its way.
func (w *writer) send(host string) (Message, Step) {
	m := w.memory[host]
	if !w.fenced {
		m.Sent = nil
	}
	st := w.state.Plan(w.Writer, m, w.want[host])
	if st.Message.Empty() {
		return Message{}, st
	}
	sent := map[string]bool{}
	for s := range w.memory[host].Sent {
		sent[s] = true
	}
	if st.Claim != "" {
		sent[st.Claim] = true
	}
	w.memory[host] = Memory{max(m.Generation, st.Next), sent, append(slices.Clone(m.Gone), st.Gone...)}
	msg := Message{append(slices.Clone(st.Message.Prereqs), w.state.BeatAsRead(w.Cluster)...), st.Message.Changes}
	if !w.fenced {
		msg.Changes = append(slices.Clone(msg.Changes), w.beat()...)
	}
	return msg, st
}

func (w *writer) beat() []dns.RR {
	w.sent = max(w.sent, w.state.Beats[w.Cluster].Counter) + 1
	return w.state.PlanBeat(w.Cluster, Beat{w.sent, w.Instance, 60e9})
}

// fence bars what was sent before: the loop does it after a message without an answer.
func (w *writer) fence(p *primary) {
	for !w.fenced {
		w.state = p.read()
		if p.update(Message{w.state.BeatAsRead(w.Cluster), w.beat()}) {
			w.fence1()
		}
	}
	w.state = p.read()
}

// fence1 notes a heartbeat that was taken: what the zone has under this cluster's name by then is its own.
func (w *writer) fence1() {
	if w.fenced {
		return
	}
	w.fenced = true
	for h, m := range w.memory {
		m.Sent = nil
		w.memory[h] = m
	}
}

// Many clusters with few addresses between them change, crash, forget, plan on what they read long ago, and send messages that arrive late
// or never. Once they rest, the zone is what the living publish, to the RR: nothing lost, nothing left over, nothing foreign touched.
func TestUnionOfTheLiving(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 30
	}
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		chaos(t, r, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func chaos(t *testing.T, r *rand.Rand, seed uint64) {
	strategy := []Strategy{Simple, LoadBalanced}[seed%2]
	hosts := []string{"www.example.org.", origin, "*.x.example.org."}[:1+r.IntN(3)]
	foreign := rrs(t, "www.example.org. 60 IN A 198.51.100.99", "www.example.org. 60 IN TXT \"mine\"", "mail.example.org. 60 IN A 198.51.100.98")
	p := &primary{t, map[string][]dns.RR{}}
	for _, rr := range foreign {
		p.add(rr)
	}
	var all []*writer
	for i := range 2 + r.IntN(5) {
		w := &writer{Writer: Writer{Identity: Identity{fmt.Sprintf("cluster%d", i), "x"}}, want: map[string]Publication{}, memory: map[string]Memory{}}
		for _, h := range hosts {
			w.want[h] = Publication{Host: h}
		}
		w.fence(p)
		all = append(all, w)
	}
	type late struct {
		Message
		from *writer
	}
	var queue []late
	for range 150 {
		w, host := all[r.IntN(len(all))], hosts[r.IntN(len(hosts))]
		switch r.IntN(10) {
		case 0, 1, 2:
			w.want[host] = randomPublication(r, host, strategy)
		case 3, 4:
			w.state = p.read()
		case 5: // the process dies and comes back with what its cluster's objects say
			w.memory, w.state, w.fenced = map[string]Memory{}, p.read(), false
		case 6: // a message that arrives later, or never
			if m, _ := w.send(host); !m.Empty() {
				queue = append(queue, late{m, w})
				w.fenced = false
			}
		case 7:
			if len(queue) > 0 {
				i := r.IntN(len(queue))
				p.update(queue[i].Message)
				queue = slices.Delete(queue, i, i+1)
			}
		default:
			if m, _ := w.send(host); !m.Empty() && p.update(m) {
				w.fence1()
			}
		}
	}
	for _, w := range all {
		w.fence(p)
	}
	settle(t, p, all, hosts)
	for _, m := range queue {
		if p.update(m.Message) {
			t.Errorf("a message from before the heartbeat took effect after it:\n%v", m.Message)
		}
	}
	settled(t, p, all, foreign)
	for _, w := range all {
		for _, h := range hosts {
			w.want[h] = Publication{Host: h}
		}
	}
	settle(t, p, all, hosts)
	settled(t, p, all, foreign)
}

// settle has all clusters read and send in turns until none has anything to send.
func settle(t *testing.T, p *primary, all []*writer, hosts []string) {
	for range 20 {
		said := false
		for _, w := range all {
			for _, h := range hosts {
				w.state = p.read()
				m, st := w.send(h)
				if st.Conflict != nil {
					t.Fatalf("%s: %+v", w.Cluster, st.Conflict)
				}
				if m.Empty() {
					continue
				}
				said = true
				if !p.update(m) {
					t.Fatalf("%s: a message that was planned on the zone as it is does not hold: %v", w.Cluster, m)
				}
				after := p.read()
				if left := after.Dropped(&st); left != nil {
					t.Fatalf("%s: dropped %v", w.Cluster, left)
				}
				again := after.Plan(w.Writer, w.memory[h], w.want[h])
				if !again.Done() {
					t.Fatalf("%s: %s is not at rest after one message: %+v", w.Cluster, h, again)
				}
				w.memory[h] = Memory{Generation: w.memory[h].Generation}
			}
		}
		if !said {
			return
		}
	}
	t.Fatal("they never rest")
}

func settled(t *testing.T, p *primary, all []*writer, foreign []dns.RR) {
	t.Helper()
	want := map[string]bool{}
	for _, rr := range foreign {
		want[noGeneration(rr)] = true
	}
	for _, w := range all {
		for _, pub := range w.want {
			if !pub.Empty() {
				for _, rr := range compose(origin, Claim{Publication: pub, Identity: w.Identity}) {
					want[noGeneration(rr)] = true
				}
			}
		}
	}
	have := map[string]bool{}
	for _, rr := range p.records() {
		if pl := (names{origin}).place(rr.Header().Name); pl.kind != beatName {
			have[noGeneration(rr)] = true
		}
	}
	for l := range have {
		if !want[l] {
			t.Errorf("left over: %s", l)
		}
	}
	for l := range want {
		if !have[l] {
			t.Errorf("lost: %s", l)
		}
	}
}

func noGeneration(rr dns.RR) string {
	c := dns.Copy(rr)
	if x, ok := c.(*dns.TXT); ok {
		x.Txt = slices.DeleteFunc(slices.Clone(x.Txt), func(s string) bool { return strings.HasPrefix(s, "gen=") || strings.HasPrefix(s, "a=") })
	}
	return c.String()
}

func randomPublication(r *rand.Rand, host string, s Strategy) Publication {
	p := Publication{Host: host, Strategy: s, TTL: 60}
	if r.IntN(4) == 0 {
		return Publication{Host: host}
	}
	if s == LoadBalanced {
		p.Geo, p.Weight = []string{"", "ie", "geo-eu"}[r.IntN(3)], uint32(r.IntN(3))
		if r.IntN(6) == 0 {
			p.Target = "lb.example.com."
			return p
		}
	}
	for i := range 1 + r.IntN(3) {
		p.Addresses = append(p.Addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i + r.IntN(3))}))
	}
	return p.Normal()
}
