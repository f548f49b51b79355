package zone

import (
	"slices"
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

// write takes what a cluster wants, planned on the zone as it is, without a conflict.
func (p *primary) write(id string, want Publication) Step {
	p.t.Helper()
	st := p.read().Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, want)
	if st.Conflict != nil || !p.update(st.Message) {
		p.t.Fatalf("%s: %+v", id, st)
	}
	return st
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
