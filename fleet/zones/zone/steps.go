package zone

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// withdraw deletes an address of this cluster at the host and at the names of its regions, except at the names in keep and where another
// reference shows that the address must stay. Of this cluster's references to the address, only ref stays (nil: none). The last cluster
// also deletes the zero Reference. All references to the address are a prerequisite: if two clusters withdraw it at the same time, the
// server refuses the second one's message, and that cluster plans again as the last one.
func (p *planner) withdraw(a netip.Addr, ref *Reference, keep []string) {
	refs := p.names.references(p.want.Host, a)
	var gone []string
	others := p.others(a)
	take := func(name string, shared bool) {
		if _, there := p.ttlOf(name, a); there && !shared && !slices.Contains(keep, name) {
			gone = append(gone, name)
		}
	}
	take(p.want.Host, len(others) > 0)
	for _, geo := range p.regions(a) {
		shared := slices.ContainsFunc(others, func(r Reference) bool { return r.Geo == geo })
		take(p.level(p.want.Host, geo), shared)
		take(p.oldLevel(p.want.Host, geo), shared)
	}
	last := ref == nil && !slices.ContainsFunc(others, func(r Reference) bool { return r != Reference{} })
	var drop []dns.RR
	for _, rr := range p.RRset(refs, dns.TypeTXT) {
		r, err := parseReference(rr.(*dns.TXT).Txt)
		if err == nil && (r.Cluster == p.w.Cluster && (ref == nil || r != *ref) || last && r == Reference{}) {
			drop = append(drop, rr)
		}
	}
	if len(gone)+len(drop) == 0 {
		return
	}
	p.asRead(refs, dns.TypeTXT)
	for _, rr := range drop {
		p.deleteRR(rr)
	}
	for _, name := range gone {
		p.deleteRR(addressRR(name, a, 0))
		p.step.Gone = append(p.step.Gone, Gone{name, a})
	}
}

// dropOwn deletes at CLUSTER.klb.HOST all addresses except addrs, and a CNAME unless it leads to target. At the name that an older version
// used for it, dropOwn deletes all addresses and any CNAME.
func (p *planner) dropOwn(addrs []netip.Addr, target string) {
	p.empty(p.level(p.want.Host, p.w.Cluster), addrs, target)
	p.empty(p.oldLevel(p.want.Host, p.w.Cluster), nil, "")
}

func (p *planner) empty(own string, addrs []netip.Addr, target string) {
	for _, a := range p.addresses(own) {
		if !slices.Contains(addrs, a) {
			p.deleteRR(addressRR(own, a, 0))
		}
	}
	if c := p.cname(own); c != "" && c != target {
		p.deleteSet(own, dns.TypeCNAME)
	}
}

// leave removes this cluster from the host. If the cluster is the last one, leave also deletes the strategy, with the RRset of owners as a
// prerequisite. The other clusters leave without this prerequisite, so that several can leave at the same time.
func (p *planner) leave() {
	name := p.names.claim(p.want.Host, p.w.Cluster)
	for _, a := range p.old() {
		p.withdraw(a, nil, nil)
	}
	p.dropOwn(nil, "")
	if len(p.RRset(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	owners := p.owners(p.want.Host)
	for _, rr := range p.RRset(owners, dns.TypeTXT) {
		if o, err := parseOwner(rr.(*dns.TXT).Txt); err == nil && o == p.w.Cluster {
			p.deleteRR(rr)
		}
	}
	foreign, ttls := p.before()
	if rest := slices.DeleteFunc(slices.Clone(p.host.Owners), func(o string) bool { return o == p.w.Cluster }); len(rest) == 0 {
		strategy := p.strategy(p.want.Host)
		for _, n := range []string{strategy, owners} {
			if len(p.RRset(n, dns.TypeTXT)) > 0 {
				p.asRead(n, dns.TypeTXT)
				p.deleteSet(n, dns.TypeTXT)
			} else if n == owners && !p.step.Message.Empty() {
				p.asRead(n, dns.TypeTXT)
			}
		}
		guarded := map[uint16]bool{}
		for _, a := range foreign { // the last cluster restores the TTL of the addresses that no cluster wrote
			before, known := ttls[typeOf(a)]
			if ttl, _ := p.ttlOf(p.want.Host, a); known && ttl != before {
				if !guarded[typeOf(a)] {
					guarded[typeOf(a)] = true // with a prerequisite, because a user may delete the address at the same time
					p.asRead(p.want.Host, typeOf(a))
				}
				p.deleteRR(addressRR(p.want.Host, a, 0))
				p.write(addressRR(p.want.Host, a, before))
			}
		}
	}
	if !p.step.Message.Empty() {
		p.step.Leaves = true
		p.asRead(name, dns.TypeTXT)
	}
}

// agree decides the strategy and the TTL, which are the same for all clusters of a host. While the clusters want different values, the
// host keeps its present ones, and a cluster that already publishes the host still updates its addresses. Each cluster's claim has the
// values that the cluster wants; the cluster that sees that all claims agree changes the host. A cluster that does not publish the host
// yet gets a conflict if it wants another strategy than the host's, unless all others want that one too.
func (p *planner) agree() *Conflict {
	strategy, disagreement := agreed(p, p.want.Strategy, p.host.Strategy, func(c Claim) Strategy { return cmp.Or(c.Wants, c.Strategy) })
	if strategy != p.want.Strategy {
		c := Conflict{ConflictingStrategy, fmt.Sprintf("%s has the strategy %s", p.want.Host, disagreement)}
		if !p.has {
			return &c
		}
		p.step.Notes = append(p.step.Notes, c)
		p.wants, p.want = p.want.Strategy, p.want.under(strategy)
	}
	if p.ttl, disagreement = agreed(p, p.want.TTL, p.host.TTL, func(c Claim) uint32 { return c.TTL }); disagreement != "" {
		p.note(ConflictingTTL, "%s has the TTL %s", p.want.Host, disagreement)
	}
	return nil
}

// change plans the next message that brings this cluster's records of the host nearer to what it wants to publish.
func (p *planner) change() {
	if p.step.Conflict = p.agree(); p.step.Conflict != nil {
		return
	}
	if p.step.Conflict = p.occupied(); p.step.Conflict != nil {
		return
	}
	if all := p.host.DefaultGeos; len(all) > 1 {
		p.note(ConflictingDefault, "%s are each called the default region of %s; edges use %s until one is left",
			strings.Join(all, ", "), p.want.Host, p.host.DefaultGeo)
	}
	p.noteForeign()
	want := p.bounded()
	places := p.room(want)
	own := p.level(want.Host, p.w.Cluster)
	for _, a := range p.old() {
		var ref *Reference
		if _, ok := places[a]; ok {
			ref = &Reference{p.w.Cluster, want.Geo}
		}
		p.withdraw(a, ref, places[a])
	}
	kept := slices.DeleteFunc(slices.Clone(want.Addresses), func(a netip.Addr) bool { return !slices.Contains(places[a], own) })
	p.dropOwn(kept, want.Target)

	p.addStrategy()
	p.add(want, places)
	same := p.has && len(p.RRset(p.names.claim(want.Host, p.w.Cluster), dns.TypeTXT)) == 1 && p.claimed(want)
	if same && p.step.Message.Empty() || p.step.Conflict != nil {
		p.step.Message, p.step.Gone = Message{}, nil
		if p.has {
			p.step.Claim, p.step.Next = joined(p.raw.Txt), max(p.m.Generation, p.claim.Generation)
		}
		return
	}
	p.replaceClaim(want)
}

// noteForeign adds a note about addresses at the host that no cluster wrote and that stay when the clusters leave.
func (p *planner) noteForeign() {
	foreign, _ := p.before()
	foreign = slices.DeleteFunc(foreign, func(a netip.Addr) bool { return p.want.Adopt && slices.Contains(p.want.Addresses, a) })
	if len(foreign) > 0 {
		p.note(ForeignAddresses, "%s has %s, which no cluster wrote; they stay when the clusters leave. "+
			"To make them the clusters' own, publish them with adopt: true, or delete them", p.want.Host, strings.Trim(fmt.Sprint(foreign), "[]"))
	}
}

// addStrategy writes the host's strategy and TTL if the zone has none, or if they change because all clusters agree or no other cluster
// publishes the host. For a change, the RRset of owners is a prerequisite.
func (p *planner) addStrategy() {
	name := p.strategy(p.want.Host)
	if p.host.Strategy == p.want.Strategy && p.host.TTL == p.ttl {
		return // if the step writes anything, replaceClaim makes the strategy a prerequisite
	}
	if p.host.Strategy != "" { // the server must refuse this change if another cluster has joined since the read
		p.asRead(p.owners(p.want.Host), dns.TypeTXT)
	}
	_, before := p.before()
	if len(p.RRset(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	p.write(txt(name, strategyText(p.want.Strategy, p.ttl, before)))
}

// add writes what the zone lacks of this cluster: its TXT records of the owner and of references, its addresses and its CNAME. It replaces
// addresses and a CNAME that have another TTL. If the RRset for a TXT record is full, the step gets a conflict.
func (p *planner) add(want Publication, places map[netip.Addr][]string) {
	full := func(name string) bool {
		if p.w.Limit > 0 && len(p.RRset(name, dns.TypeTXT)) >= p.w.Limit {
			p.step.Conflict = conflict(RRsetFull, "%s has %d TXT RRs, as many as the server takes; raise max-records-per-type on BIND",
				name, p.w.Limit)
			return true
		}
		return false
	}
	if !slices.Contains(p.host.Owners, p.w.Cluster) {
		if full(p.owners(want.Host)) {
			return
		}
		p.write(txt(p.owners(want.Host), ownerText(p.w.Cluster)))
	}
	for _, a := range want.Addresses { // delete first: if an existing RR is added with another TTL, Knot keeps the old TTL
		for _, name := range places[a] {
			if ttl, there := p.ttlOf(name, a); there && ttl != p.ttl {
				p.deleteRR(addressRR(name, a, 0))
			}
		}
	}
	foreign, _ := p.before()
	guarded := map[string]bool{}
	for _, a := range want.Addresses {
		ref := Reference{p.w.Cluster, want.Geo}
		if !slices.Contains(p.mine[a], ref) {
			name := p.names.references(want.Host, a)
			if full(name) {
				return
			}
			p.write(txt(name, ref.text()))
			// The zone may have this TXT record already. Write it again, because the cluster that wrote it may leave at the same time.
			if !want.Adopt && slices.Contains(foreign, a) {
				p.write(txt(name, Reference{}.text()))
			}
		}
		if want.Adopt && slices.Contains(p.host.References[a], Reference{}) {
			p.deleteRR(txt(p.names.references(want.Host, a), Reference{}.text()))
		}
		for _, name := range places[a] {
			if ttl, there := p.ttlOf(name, a); there && ttl == p.ttl {
				continue
			}
			if !guarded[name] && name != p.level(want.Host, p.w.Cluster) {
				// The name must have no CNAME: next to a CNAME, BIND and Knot drop an added address, and still answer NOERROR.
				guarded[name] = true
				p.asRead(name, dns.TypeCNAME)
			}
			p.write(addressRR(name, a, p.ttl))
		}
	}
	own := p.level(want.Host, p.w.Cluster)
	old := p.RRset(own, dns.TypeCNAME)
	if want.Target != "" && (len(old) == 0 || p.cname(own) != want.Target || old[0].Header().Ttl != p.ttl) {
		if p.cname(own) == want.Target {
			p.deleteSet(own, dns.TypeCNAME)
		}
		p.write(cnameRR(own, want.Target, p.ttl))
	}
}

func (p *planner) claimFor(want Publication, generation uint64) Claim {
	return Claim{Publication: want, Identity: p.w.Identity, Generation: generation, Wants: p.wants}
}

// claimed reports whether this cluster's claim as read, which must exist, is the one for want.
func (p *planner) claimed(want Publication) bool {
	c := p.claimFor(want, p.claim.Generation)
	return joined(c.text()) == joined(p.raw.Txt)
}

// replaceClaim writes the new claim, as the last change of a message. The claim as read is a prerequisite of each such message. So once
// this message has taken effect, no earlier one that is still under way can.
func (p *planner) replaceClaim(want Publication) {
	name := p.names.claim(want.Host, p.w.Cluster)
	p.asRead(name, dns.TypeTXT)
	p.asRead(p.strategy(want.Host), dns.TypeTXT)
	p.step.Next = max(p.m.Generation, p.claim.Generation) + 1
	c := p.claimFor(want, p.step.Next)
	p.step.Claim = joined(c.text())
	if len(p.RRset(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	p.write(txt(name, c.text()))
}
