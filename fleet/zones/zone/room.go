package zone

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// occupied returns a conflict if the host is a name server of this zone, or if a CNAME, DNAME or delegation hides the addresses at the host
// or, with the strategy LoadBalanced, at LABEL.klb.HOST.
func (p *planner) occupied() *Conflict {
	for _, rr := range p.RRset(p.Origin, dns.TypeNS) {
		if ns, ok := rr.(*dns.NS); ok && lower(ns.Ns) == p.want.Host {
			return conflict(ConflictingName,
				"%s is a name server of the zone, which would be without its address when the last cluster leaves; "+
					"write its addresses by hand", p.want.Host)
		}
	}
	names := []string{p.want.Host}
	if p.want.Strategy == LoadBalanced {
		names = append(names, p.level(p.want.Host, p.w.Cluster))
		if p.want.Geo != "" {
			names = append(names, p.level(p.want.Host, p.want.Geo))
		}
	}
	for i, name := range names {
		if c := p.cname(name); c != "" && i != 1 { // names[1], CLUSTER.klb.HOST, may have a CNAME: to the hostname that the cluster publishes
			return conflict(ConflictingName, "%s is a CNAME to %s, and no address can be next to it; delete the CNAME", name, c)
		}
		if c := p.hidden(name); c != nil {
			return c
		}
	}
	return nil
}

// hidden returns a conflict if servers would not answer with the name's addresses, because of a delegation at the name or above it, or a
// DNAME above it (RFC 1034 section 4.3.2, RFC 6672 section 2.4). The name of a name server below its own delegation is no conflict: servers
// return its addresses as glue.
func (p *planner) hidden(name string) *Conflict {
	for above, at := name, 0; above != p.Origin; above = name[at:] {
		delegation := p.RRset(above, dns.TypeNS)
		glue := above != name && slices.ContainsFunc(delegation, func(rr dns.RR) bool { return lower(rr.(*dns.NS).Ns) == name })
		if len(delegation) > 0 && !glue {
			return conflict(ConflictingName,
				"%s is delegated to other name servers, which hides addresses of %s; delete the NS of %s, or publish the host in the zone below",
				above, p.want.Host, above)
		}
		next, _ := dns.NextLabel(name, at)
		at = next
		if redirect := p.RRset(name[at:], dns.TypeDNAME); len(redirect) > 0 {
			return conflict(ConflictingName, "%s has a DNAME, which hides %s; delete the DNAME", name[at:], name)
		}
	}
	return nil
}

// agreed decides a value that all clusters of a host must share. It returns mine if every other cluster wants the same or the host has no
// strategy yet; otherwise it returns the zone's current value, and a text that lists which clusters want which value.
func agreed[V cmp.Ordered](p *planner, mine, zone V, wanted func(Claim) V) (V, string) {
	clusters := map[V][]string{mine: {p.w.Cluster}}
	for cluster, c := range p.host.Claims {
		if cluster != p.w.Cluster {
			clusters[wanted(c)] = append(clusters[wanted(c)], cluster)
		}
	}
	if p.host.Strategy == "" || len(clusters) == 1 {
		return mine, ""
	}
	var wants []string
	for _, value := range slices.Sorted(maps.Keys(clusters)) {
		slices.Sort(clusters[value])
		wants = append(wants, fmt.Sprintf("%v by %s", value, strings.Join(clusters[value], ", ")))
	}
	return zone, fmt.Sprintf("%v; wanted are %s; make them the same", zone, strings.Join(wants, "; "))
}

// bounded returns the wanted publication. If that changes more than atOnce of the addresses that this cluster has at the host, bounded
// returns a publication between the present and the wanted one, unless the cluster has no address there yet or wants a target.
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

// room returns the names at which to publish each address. Names whose RRset is at the server's limit get no new address. An address that
// does not fit at the host is left for the cluster's own name below klb, where edges find it; room adds it to the step's Unserved.
func (p *planner) room(want Publication) map[netip.Addr][]string {
	free := map[string]int{}
	left := func(name string, rrtype uint16) int {
		key := fmt.Sprint(name, rrtype)
		if _, ok := free[key]; !ok {
			free[key] = p.w.Limit - len(p.RRset(name, rrtype))
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
			rest = fmt.Sprintf(", %d fit neither at the host nor at the cluster's name", nowhere)
		}
		p.note(RRsetFull, "%s has as many addresses as the server takes, %d of one type; %d are left to edges%s. "+
			"Raise max-records-per-type on BIND", want.Host, p.w.Limit, n-nowhere, rest)
	}
	return places
}

// atOwn returns the addresses to publish at the cluster's own name below klb, no more of each type than the server's limit. Addresses that
// did not fit at the host come first, because edges find them only at this name; then those that the name already has.
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
