package zone

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// occupied returns why the host is not free for this publication.
func (p *planner) occupied() *Conflict {
	h := p.host
	others := len(h.Owners) - 1
	if !slices.Contains(h.Owners, p.w.Cluster) {
		others++
	}
	if h.Strategy != "" && others > 0 && h.Strategy != p.want.Strategy {
		return &Conflict{ConflictingStrategy, fmt.Sprintf("%s has the strategy %s by %s, not %s; make them the same", h.Name, h.Strategy,
			strings.Join(h.Owners, ", "), p.want.Strategy)}
	}
	for _, rr := range p.setOf(p.Origin, dns.TypeNS) {
		if ns, ok := rr.(*dns.NS); ok && lower(ns.Ns) == p.want.Host {
			return &Conflict{ConflictingName, fmt.Sprintf("%s is a name server of the zone, which would be without its address when the last cluster leaves; "+
				"write its addresses by hand", p.want.Host)}
		}
	}
	for _, name := range []string{p.want.Host, p.level(p.want.Host, p.want.Geo)} {
		if name != p.want.Host && (p.want.Strategy == Simple || p.want.Geo == "") {
			continue
		}
		if c := p.cname(name); c != "" {
			return &Conflict{ConflictingName, fmt.Sprintf("%s is a CNAME to %s, beside which no address can be; delete it", name, c)}
		}
		if name != p.Origin && len(p.setOf(name, dns.TypeNS)) > 0 {
			return &Conflict{ConflictingName, fmt.Sprintf("%s is delegated to other name servers; delete its NS", name)}
		}
	}
	return nil
}

// agreedTTL returns the TTL of the host's records: the wanted one if all other clusters want it too, and else the zone's. The second result is
// the note about a disagreement, which keeps no address from being written.
func (p *planner) agreedTTL() (uint32, string) {
	wants := map[uint32][]string{p.want.TTL: {p.w.Cluster}}
	for cluster, c := range p.host.Claims {
		if cluster != p.w.Cluster {
			wants[c.TTL] = append(wants[c.TTL], cluster)
		}
	}
	if p.host.Strategy == "" || len(wants) == 1 {
		return p.want.TTL, ""
	}
	var all []string
	for _, ttl := range slices.Sorted(maps.Keys(wants)) {
		slices.Sort(wants[ttl])
		all = append(all, fmt.Sprintf("%d by %s", ttl, strings.Join(wants[ttl], ", ")))
	}
	return p.host.TTL, fmt.Sprintf("%s has the TTL %d; wanted are %s; make them the same", p.want.Host, p.host.TTL, strings.Join(all, "; "))
}

// bounded is the publication, or one on the way to it, of no more changes than fit in a message.
func (p *planner) bounded() Publication {
	want := p.want
	old := slices.Collect(maps.Keys(p.mine))
	slices.SortFunc(old, netip.Addr.Compare)
	added := slices.DeleteFunc(slices.Clone(want.Addresses), func(a netip.Addr) bool { return p.mine[a] != nil })
	dropped := slices.DeleteFunc(slices.Clone(old), func(a netip.Addr) bool { return slices.Contains(want.Addresses, a) })
	if len(added)+len(dropped) <= atOnce || want.Target != "" || len(old) == 0 {
		return want
	}
	added = added[:min(len(added), atOnce/2)]
	stay := dropped[min(len(dropped), atOnce-len(added)):]
	want.Addresses = slices.DeleteFunc(slices.Clone(want.Addresses), func(a netip.Addr) bool { return p.mine[a] == nil })
	want.Addresses = append(append(want.Addresses, added...), stay...)
	slices.SortFunc(want.Addresses, netip.Addr.Compare)
	want.Addresses = want.Addresses[:min(len(want.Addresses), MaxAddresses)]
	return want
}

// room returns at which names each address is to be. A set that is full takes nothing new: then the address is at the cluster's own level,
// where edges find it.
func (p *planner) room(want Publication) map[netip.Addr][]string {
	free := map[string]int{}
	left := func(name string, rrtype uint16) int {
		key := fmt.Sprint(name, rrtype)
		if _, ok := free[key]; !ok {
			free[key] = p.w.Limit - len(p.setOf(name, rrtype))
		}
		return free[key]
	}
	fits := func(name string, a netip.Addr) bool {
		if _, there := p.ttlOf(name, a); there || p.w.Limit == 0 {
			return true
		}
		if left(name, typeOf(a)) <= 0 {
			return false
		}
		free[fmt.Sprint(name, typeOf(a))]--
		return true
	}
	c := Claim{Publication: want, Identity: p.w.Identity}
	own := p.level(want.Host, p.w.Cluster)
	others := slices.DeleteFunc(p.answers(&c), func(name string) bool { return name == own })
	places := map[netip.Addr][]string{}
	for _, a := range want.Addresses {
		at := []string{}
		for _, name := range others {
			if fits(name, a) {
				at = append(at, name)
			} else if name == want.Host {
				p.step.Unserved = append(p.step.Unserved, a)
			}
		}
		places[a] = at
	}
	for _, a := range p.atOwn(want, own) {
		places[a] = append(places[a], own)
	}
	if n := len(p.step.Unserved); n > 0 {
		nowhere := len(slices.DeleteFunc(slices.Clone(p.step.Unserved), func(a netip.Addr) bool { return slices.Contains(places[a], own) }))
		rest := ""
		if nowhere > 0 {
			rest = fmt.Sprintf(", %d are nowhere", nowhere)
		}
		p.note(RRsetFull, "%s has as many addresses as the server takes, %d of one type; %d are left to edges%s. Raise max-records-per-type on BIND",
			want.Host, p.w.Limit, n-nowhere, rest)
	}
	return places
}

// atOwn returns the addresses that are at the cluster's own level, as many of each type as fit: first those that the host lacks, which are
// nowhere else, then those that are there.
func (p *planner) atOwn(want Publication, own string) []netip.Addr {
	all := slices.Clone(p.step.Unserved)
	if want.Strategy == LoadBalanced {
		all = slices.Clone(want.Addresses)
	}
	rank := func(a netip.Addr) int {
		if slices.Contains(p.step.Unserved, a) {
			return 0
		}
		if _, there := p.ttlOf(own, a); there {
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	taken := map[uint16]int{}
	return slices.DeleteFunc(all, func(a netip.Addr) bool {
		taken[typeOf(a)]++
		return p.w.Limit > 0 && taken[typeOf(a)] > p.w.Limit
	})
}
