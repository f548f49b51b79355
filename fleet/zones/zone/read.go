package zone

import (
	"fmt"
	"slices"

	"github.com/miekg/dns"
)

// ClaimName returns the DNS name of a cluster's claim, which is its TXT record for a host.
func (s *State) ClaimName(host, cluster string) string { return s.claim(host, cluster) }

// HasTXT reports whether the TXT records of a name have the same strings as those in is, in any order.
func (s *State) HasTXT(name string, is []*dns.TXT) bool {
	texts := s.texts(name)
	return len(texts) == len(is) && !slices.ContainsFunc(is, func(x *dns.TXT) bool {
		return !slices.ContainsFunc(texts, func(y *dns.TXT) bool { return joined(x.Txt) == joined(y.Txt) })
	})
}

// BeatAsRead returns the prerequisite that a cluster's heartbeat in the zone is still the one in s.
func (s *State) BeatAsRead(cluster string) []dns.RR { return s.AsRead(s.beat(cluster), dns.TypeTXT) }

// BeatIs returns the prerequisite that a cluster's heartbeat in the zone is b.
func (s *State) BeatIs(cluster string, b Beat) []dns.RR {
	is := txt(s.beat(cluster), b.text())
	is.Header().Ttl = 0
	return []dns.RR{is}
}

// PlanBeat returns the changes that write b as a cluster's heartbeat.
func (s *State) PlanBeat(cluster string, b Beat) []dns.RR {
	name := s.beat(cluster)
	add := txt(name, b.text())
	if len(s.sets[name]) == 0 {
		return []dns.RR{add}
	}
	return []dns.RR{bare(name, dns.TypeTXT, dns.ClassANY), add}
}

// PlanNoBeat returns the changes that delete a cluster's heartbeat; nil if the cluster has none.
func (s *State) PlanNoBeat(cluster string) []dns.RR {
	name := s.beat(cluster)
	if len(s.sets[name]) == 0 {
		return nil
	}
	return []dns.RR{bare(name, dns.TypeTXT, dns.ClassANY)}
}

// Of returns, sorted, the hosts for which a cluster has a valid claim, owner record or reference, or records at CLUSTER.klb.HOST.
func (s *State) Of(cluster string) []string {
	var hosts []string
	for name, h := range s.Hosts {
		if h.has(cluster) {
			hosts = append(hosts, name)
		}
	}
	slices.Sort(hosts)
	return hosts
}

func (h *Host) has(cluster string) bool {
	if _, ok := h.Claims[cluster]; ok || slices.Contains(h.Owners, cluster) || h.Levels[cluster] != nil || h.Targets[cluster] != "" {
		return true
	}
	for _, refs := range h.References {
		if slices.ContainsFunc(refs, func(r Reference) bool { return r.Cluster == cluster }) {
			return true
		}
	}
	return false
}

// Dropped returns changes of a step that the server did not make although it answered NOERROR to the step's message. The state s must have
// been read after that answer. Each result is a name with its record type. Not every change is compared, because another cluster may have
// undone some.
func (s *State) Dropped(st *Step) []string {
	var left []string
	for _, rr := range st.Message.Changes {
		h := rr.Header()
		name := lower(h.Name)
		missing := false
		switch h.Class {
		case dns.ClassINET:
			missing = !slices.ContainsFunc(s.sets[name], func(x dns.RR) bool {
				return dns.IsDuplicate(x, rr) && (h.Rrtype == dns.TypeTXT || x.Header().Ttl == h.Ttl || s.otherTTL(st, h.Ttl))
			})
			if s.place(name).kind == strategyName {
				missing = len(s.sets[name]) == 0
			}
		case dns.ClassNONE:
			// In an RRset that clusters share, another cluster may add the zero Reference again, but not this cluster's TXT records.
			if t, ok := rr.(*dns.TXT); ok && joined(t.Txt) != joined(Reference{}.text()) {
				c := dns.Copy(rr)
				c.Header().Class = dns.ClassINET
				missing = slices.ContainsFunc(s.sets[name], func(x dns.RR) bool { return dns.IsDuplicate(x, c) })
			}
		case dns.ClassANY:
			missing = s.place(name).kind == claimName && st.Claim == "" && len(s.texts(name)) > 0
		}
		if missing {
			left = append(left, fmt.Sprintf("%s %s", name, dns.TypeToString[h.Rrtype]))
		}
	}
	for _, g := range st.Gone {
		if s.stray(st.Host, g) {
			left = append(left, fmt.Sprintf("%s %s", g.Name, dns.TypeToString[typeOf(g.Addr)]))
		}
	}
	slices.Sort(left)
	return slices.Compact(left)
}

// otherTTL reports whether another cluster has changed the host's TTL since the step: it is neither the TTL before the step nor ttl, which
// the step wrote.
func (s *State) otherTTL(st *Step, ttl uint32) bool {
	h := s.Hosts[st.Host]
	return h != nil && h.TTL != ttl && h.TTL != st.ttlBefore
}

// stray reports whether an address that a step deleted from a name is at that name now, although no Reference of the host keeps it there.
func (s *State) stray(host string, g Gone) bool {
	if !slices.Contains(s.addresses(g.Name), g.Addr) {
		return false
	}
	h := s.Hosts[host]
	if h == nil {
		return true
	}
	p := s.place(g.Name)
	return !slices.ContainsFunc(h.References[g.Addr], func(r Reference) bool {
		return g.Name == host || p.label == r.Geo || p.label == r.Cluster
	})
}

// Growth returns the numbers of RRs, before and after the message, of the largest address RRset that the message makes larger. If there is
// no such RRset, both are 0.
func (s *State) Growth(m *Message) (before, after int) {
	type key struct {
		name   string
		rrtype uint16
	}
	delta := map[key]int{}
	for _, rr := range m.Changes {
		if h := rr.Header(); h.Rrtype == dns.TypeA || h.Rrtype == dns.TypeAAAA {
			switch h.Class {
			case dns.ClassINET:
				delta[key{h.Name, h.Rrtype}]++
			case dns.ClassNONE:
				delta[key{h.Name, h.Rrtype}]--
			}
		}
	}
	for k, d := range delta {
		n := 0
		for _, rr := range s.sets[k.name] {
			if rr.Header().Rrtype == k.rrtype {
				n++
			}
		}
		if d > 0 && n+d > after {
			before, after = n, n+d
		}
	}
	return before, after
}
