package zone

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// State is the content of a zone as it was read. It is never modified; Apply returns a new State.
type State struct {
	Origin  string // canonical
	Serial  uint32
	Hosts   map[string]*Host // by canonical name: the hosts for which the zone has RRs below _neardns.ZONE or at LABEL.klb.HOST
	Beats   map[string]Beat  // valid heartbeats, by cluster ID
	Ignored int              // number of RRs below _neardns.ZONE, except RRSIG and NSEC, that are no valid bookkeeping

	names
	sets    map[string]set                 // by canonical name
	namesOf map[string]map[string]struct{} // by host: the names with RRs that belong to the host, below _neardns.ZONE or at LABEL.klb.HOST
	junk    map[string]int                 // by name: how many of its RRs are counted in Ignored
}

// set is all RRs of one name.
type set []dns.RR

// written returns the number of RRs in the set that clusters or other writers have written: all except RRSIG and NSEC, which a primary that
// signs the zone adds by itself (RFC 4034).
func (s set) written() (n int) {
	for _, rr := range s {
		if t := rr.Header().Rrtype; t != dns.TypeRRSIG && t != dns.TypeNSEC {
			n++
		}
	}
	return n
}

// Host is what the zone has for one host.
type Host struct {
	Name        string
	Strategy    Strategy                // empty: the zone has no valid one for the host
	TTL         uint32                  // seconds; from the TXT record that has the strategy
	Addresses   []netip.Addr            // at the host's own name, sorted; plain servers answer with them
	Levels      map[string][]netip.Addr // by region code or cluster ID: the addresses at LABEL.klb.HOST
	Targets     map[string]string       // by cluster ID or region code: the target of a CNAME at LABEL.klb.HOST, if no address is there
	CNAME       string                  // the target of a CNAME at the host, which excludes addresses; no cluster wrote it
	Claims      map[string]Claim        // by cluster ID
	Owners      []string                // IDs of the clusters that publish the host, by its TXT records of owners; sorted
	References  map[netip.Addr][]Reference
	DefaultGeo  string   // the default region that edges use: the first of DefaultGeos; empty: none
	DefaultGeos []string // the default regions that clusters want, sorted; more than one is a conflict
}

// Held returns, sorted, all addresses that the zone has for the host: at its own name, and at LABEL.klb.HOST.
func (h *Host) Held() []netip.Addr {
	all := slices.Clone(h.Addresses)
	for _, l := range h.Levels {
		all = append(all, l...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Has reports whether the zone has an address at the host's own name or at CLUSTER.klb.HOST. If the host's RRset was full, the address is
// not at its own name.
func (h *Host) Has(cluster string, a netip.Addr) bool {
	_, at := slices.BinarySearchFunc(h.Addresses, a, netip.Addr.Compare)
	_, below := slices.BinarySearchFunc(h.Levels[cluster], a, netip.Addr.Compare)
	return at || below
}

// Parse makes a State of all RRs of a zone. The SOA may occur twice, as in a transfer. Parse returns an error if the SOA is missing or
// wrong, or if an RR is not in the zone. Bookkeeping that cannot be parsed is only counted.
func Parse(origin string, rrs []dns.RR) (*State, error) {
	s := &State{Origin: lower(origin), sets: map[string]set{}}
	s.names = names{s.Origin}
	found := false
	for _, rr := range rrs {
		if soa, ok := rr.(*dns.SOA); ok {
			if lower(soa.Hdr.Name) != s.Origin || found && soa.Serial != s.Serial {
				return nil, fmt.Errorf("parse %s: an SOA of %s with serial %d is not the zone's", s.Origin, soa.Hdr.Name, soa.Serial)
			}
			s.Serial, found = soa.Serial, true
			continue
		}
		name := lower(rr.Header().Name)
		if !dns.IsSubDomain(s.Origin, name) {
			return nil, fmt.Errorf("parse %s: %s is not in the zone", s.Origin, name)
		}
		s.sets[name] = append(s.sets[name], rr)
	}
	if !found {
		return nil, fmt.Errorf("parse %s: no SOA: the zone is not whole", s.Origin)
	}
	s.Hosts, s.Beats = map[string]*Host{}, map[string]Beat{}
	s.namesOf, s.junk = map[string]map[string]struct{}{}, map[string]int{}
	for name := range s.sets {
		s.index(name)
	}
	for host := range s.namesOf {
		s.derive(host)
	}
	return s, nil
}

// index records to which host a name below _neardns.ZONE or klb belongs, and returns that host; "" if the name belongs to none. If the name
// is that of a heartbeat, index parses it.
func (s *State) index(name string) (host string) {
	p := s.place(name)
	switch p.kind {
	case other:
		return ""
	case broken:
		s.ignore(name, s.sets[name].written())
		return ""
	case beatName:
		s.ignore(name, 0)
		delete(s.Beats, p.cluster)
		if texts := s.texts(name); len(texts) == 1 {
			if b, err := parseBeat(texts[0].Txt); err == nil {
				s.Beats[p.cluster] = b
				return ""
			}
		}
		s.ignore(name, s.sets[name].written())
		return ""
	}
	of := s.namesOf[p.host]
	if len(s.sets[name]) == 0 {
		delete(of, name)
		return p.host
	}
	if of == nil {
		of = map[string]struct{}{}
		s.namesOf[p.host] = of
	}
	of[name] = struct{}{}
	return p.host
}

func (s *State) ignore(name string, n int) {
	s.Ignored += n - s.junk[name]
	if n == 0 {
		delete(s.junk, name)
	} else {
		s.junk[name] = n
	}
}

// texts returns the TXT records of a name.
func (s *State) texts(name string) []*dns.TXT {
	var t []*dns.TXT
	for _, rr := range s.sets[name] {
		if x, ok := rr.(*dns.TXT); ok {
			t = append(t, x)
		}
	}
	return t
}

// addresses returns the addresses in the A and AAAA records of a name, sorted.
func (s *State) addresses(name string) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range s.sets[name] {
		if a, ok := addressOf(rr); ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

func addressOf(rr dns.RR) (netip.Addr, bool) {
	switch r := rr.(type) {
	case *dns.A:
		a, ok := netip.AddrFromSlice(r.A)
		return a.Unmap(), ok
	case *dns.AAAA:
		return netip.AddrFromSlice(r.AAAA)
	}
	return netip.Addr{}, false
}

func (s *State) cname(name string) string {
	for _, rr := range s.sets[name] {
		if c, ok := rr.(*dns.CNAME); ok {
			return lower(c.Target)
		}
	}
	return ""
}

// derive parses the RRs at all names of one host, and replaces that host's entry in Hosts.
func (s *State) derive(host string) {
	if len(s.namesOf[host]) == 0 {
		delete(s.namesOf, host)
		delete(s.Hosts, host)
		return
	}
	h := &Host{Name: host, Levels: map[string][]netip.Addr{}, Targets: map[string]string{}, Claims: map[string]Claim{},
		References: map[netip.Addr][]Reference{}, Addresses: s.addresses(host), CNAME: s.cname(host)}
	for name := range s.namesOf[host] {
		s.read(h, name)
	}
	for cluster, c := range h.Claims {
		if c.Strategy = h.Strategy; c.TTL == 0 { // the claim of an older version, which publishes only if it wants the host's TTL
			c.TTL = h.TTL
		}
		h.Claims[cluster] = c
		if c.DefaultGeo && !slices.Contains(h.DefaultGeos, c.Geo) {
			h.DefaultGeos = append(h.DefaultGeos, c.Geo)
		}
	}
	slices.Sort(h.DefaultGeos)
	if len(h.DefaultGeos) > 0 {
		h.DefaultGeo = h.DefaultGeos[0]
	}
	s.Hosts[host] = h
}

// read parses the RRs at one name that belongs to the host h, and adds the result to h.
func (s *State) read(h *Host, name string) {
	p := s.place(name)
	if p.kind == levelName {
		if addrs := s.addresses(name); len(addrs) > 0 {
			h.Levels[p.label] = append(h.Levels[p.label], addrs...) // a wildcard host may have some at its oldLevel name too
			slices.SortFunc(h.Levels[p.label], netip.Addr.Compare)
			h.Levels[p.label] = slices.Compact(h.Levels[p.label])
		} else if target := s.cname(name); target != "" {
			h.Targets[p.label] = target
		}
		return
	}
	texts, bad := s.texts(name), s.sets[name].written()
	take := func(err error) {
		if err == nil {
			bad--
		}
	}
	switch p.kind {
	case claimName:
		if c, _, ok := s.claimAt(name, p); ok {
			h.Claims[p.cluster] = c
			bad--
		}
	case strategyName:
		if len(texts) == 1 {
			var err error
			h.Strategy, h.TTL, err = parseHost(texts[0].Txt)
			take(err)
		}
	case ownersName:
		for _, t := range texts {
			o, err := parseOwner(t.Txt)
			if take(err); err == nil && !slices.Contains(h.Owners, o) {
				h.Owners = append(h.Owners, o)
			}
		}
		slices.Sort(h.Owners)
	case referencesName:
		for _, t := range texts {
			r, err := parseReference(t.Txt)
			if take(err); err == nil {
				h.References[p.addr] = append(h.References[p.addr], r)
			}
		}
		slices.SortFunc(h.References[p.addr], func(a, b Reference) int {
			return strings.Compare(a.Cluster+" "+a.Geo, b.Cluster+" "+b.Geo)
		})
	}
	s.ignore(name, bad)
}

// claimAt returns the claim (a cluster's TXT record for a host) at a name, if exactly one TXT record at the name is a valid claim.
func (s *State) claimAt(name string, p place) (Claim, *dns.TXT, bool) {
	var claim Claim
	var found *dns.TXT
	for _, t := range s.texts(name) {
		c, err := parseClaim(t.Txt, p.cluster, p.host)
		if err != nil {
			continue
		}
		if found != nil {
			return Claim{}, nil, false
		}
		claim, found = c, t
	}
	return claim, found, found != nil
}

// ErrNotNext is the error that Apply returns if a change does not fit the state. The caller must then read the whole zone again.
var ErrNotNext = errors.New("the change does not fit the zone as it was read")

// Delta is one change from an incremental transfer (RFC 1995): RRs to delete, RRs to add, and the serial after them.
type Delta struct {
	Serial         uint32
	Deleted, Added []dns.RR
}

// Apply returns the state after the changes in steps, and leaves s as it is. It returns ErrNotNext if a change deletes an RR that does not
// exist, adds one that does, or adds one outside of the zone: then s is not what the primary had before the changes. Apply copies the
// state's maps once.
func (s *State) Apply(steps ...Delta) (*State, error) {
	n := &State{Origin: s.Origin, Serial: s.Serial, Ignored: s.Ignored, names: s.names, Hosts: maps.Clone(s.Hosts),
		Beats: maps.Clone(s.Beats), sets: maps.Clone(s.sets), namesOf: maps.Clone(s.namesOf), junk: maps.Clone(s.junk)}
	own := map[string]bool{} // names whose sets the new state no longer shares with s
	edit := func(name string) set {
		if !own[name] {
			own[name] = true
			n.sets[name] = slices.Clone(n.sets[name])
		}
		return n.sets[name]
	}
	for _, step := range steps {
		if err := n.apply(step, edit); err != nil {
			return nil, err
		}
	}
	n.reread(own)
	return n, nil
}

// apply makes one change. edit returns a name's set after making sure that s does not share it with the state before.
func (s *State) apply(step Delta, edit func(name string) set) error {
	s.Serial = step.Serial
	for _, rr := range step.Deleted {
		if _, ok := rr.(*dns.SOA); ok {
			continue
		}
		name := lower(rr.Header().Name)
		at := slices.IndexFunc(edit(name), func(x dns.RR) bool { return dns.IsDuplicate(x, rr) })
		if at < 0 {
			return fmt.Errorf("delete %s: %w", rr, ErrNotNext)
		}
		s.sets[name] = slices.Delete(s.sets[name], at, at+1)
	}
	for _, rr := range step.Added {
		if _, ok := rr.(*dns.SOA); ok {
			continue
		}
		name := lower(rr.Header().Name)
		if !dns.IsSubDomain(s.Origin, name) || slices.ContainsFunc(edit(name), func(x dns.RR) bool { return dns.IsDuplicate(x, rr) }) {
			return fmt.Errorf("add %s: %w", rr, ErrNotNext)
		}
		s.sets[name] = append(s.sets[name], rr)
	}
	return nil
}

// reread parses the RRs at the changed names, and derives the hosts to which these names belong.
func (s *State) reread(changed map[string]bool) {
	hosts := map[string]bool{}
	for name := range changed {
		if p := s.place(name); p.kind != other && s.namesOf[p.host] != nil && !hosts[p.host] {
			s.namesOf[p.host] = maps.Clone(s.namesOf[p.host]) // the old state keeps its map
			hosts[p.host] = true
		}
	}
	for name := range changed {
		if host := s.index(name); host != "" {
			hosts[host] = true
		} else if s.namesOf[name] != nil {
			hosts[name] = true // the name is itself a host, whose own addresses may have changed
		}
		if len(s.sets[name]) == 0 {
			delete(s.sets, name)
			s.ignore(name, 0)
		}
	}
	for host := range hosts {
		s.derive(host)
	}
}

// Names returns the number of names that have RRs other than the SOA.
func (s *State) Names() int { return len(s.sets) }

// Records returns all RRs of the zone except the SOA, in no particular order. The caller must not modify them: the state uses them.
func (s *State) Records() []dns.RR {
	var all []dns.RR
	for _, rrs := range s.sets {
		all = append(all, rrs...)
	}
	return all
}
