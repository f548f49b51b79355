package zone

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Writer is who plans, and what bounds it.
type Writer struct {
	Identity
	Limit    int  // RRs that the server lets a set have (BIND: max-records-per-type); 0: not known to have a limit
	Takeover bool // what another instance wrote under this cluster's id is this writer's: the other one is known to be dead
}

// Memory is what a writer knows of its own messages for one host. The zero value is a fresh start, which takes what it finds under its
// identity for its own.
type Memory struct {
	Generation uint64          // the highest that it has used
	Sent       map[string]bool // claims that the zone may hold by its own doing: the one read back last, and those sent since
	Gone       []Gone          // what its messages took away
}

// Gone is an address that a message took away from a name.
type Gone struct {
	Name string
	Addr netip.Addr
}

// Reason is why a publication is not in the zone, or not as it was meant: a word for conditions and metrics.
type Reason string

// The reasons. ConflictingStrategyDiscovered and RecordsMissing are the seed's words.
const (
	ConflictingStrategy Reason = "ConflictingStrategyDiscovered"
	ConflictingTTL      Reason = "ConflictingTTL"
	ConflictingName     Reason = "ConflictingName"       // a CNAME, or a delegation, where the host's addresses would be
	ClusterIDInUse      Reason = "ClusterIDInUse"        // another instance writes under this cluster's id
	ConflictingDefault  Reason = "ConflictingDefaultGeo" // two regions are called the default: nobody is kept from writing
	ZoneRolledBack      Reason = "ZoneRolledBack"        // the zone has an older claim than this writer wrote: it writes again
	RRsetFull           Reason = "RRsetFull"             // the server's limit keeps addresses from the host
)

// Conflict is one reason, for a person.
type Conflict struct {
	Reason  Reason
	Message string
}

// Step is what brings the zone nearer to what a cluster means to say of one host. Without a conflict and with an empty message the zone
// says it already.
type Step struct {
	Host     string
	Message  Message
	Conflict *Conflict    // nothing is written as long as it stands
	Notes    []Conflict   // what a person should know; they keep nothing from being written
	Claim    string       // the claim that the message writes, or that stands where there is none, as Memory's Sent has it; empty: none
	Next     uint64       // the generation of that claim, or the last one
	Gone     []Gone       // what the message takes away
	Unserved []netip.Addr // of the publication, not at the host for want of room
	Leaves   bool         // the message ends the cluster's part, or prunes what nobody owns
}

// Done reports whether the zone says what it should.
func (st *Step) Done() bool { return st.Conflict == nil && st.Message.Empty() }

// atOnce is how many addresses one message changes: those of a larger change come with the next. It keeps a message within 64 KiB.
const atOnce = 100

// Plan returns the next message for one host: to what want says, or, where it says nothing, to nothing. The host is want's. All is
// compared with the zone, nothing with an earlier plan, so that a step which was cut short, or was undone, is planned again.
func (s *State) Plan(w Writer, m Memory, want Publication) Step {
	p := planner{State: s, w: w, m: m, want: want, step: Step{Host: want.Host, Next: m.Generation}}
	p.read()
	if p.step.Conflict = p.foreign(); p.step.Conflict != nil {
		return p.step
	}
	if want.Empty() {
		p.leave()
	} else {
		p.change()
	}
	return p.step
}

// PlanRemoval returns the message that takes a dead cluster's part of one host away, as it would have left by itself. The caller adds the
// prerequisite that the cluster is dead.
func (s *State) PlanRemoval(host, cluster string) Step {
	p := planner{State: s, w: Writer{Identity: Identity{Cluster: cluster}}, want: Publication{Host: host}, step: Step{Host: host}}
	p.read()
	p.leave()
	return p.step
}

// planner makes one step.
type planner struct {
	*State
	w    Writer
	m    Memory
	want Publication
	step Step

	host  *Host
	claim Claim // mine, as read
	has   bool  // there is one
	raw   *dns.TXT
	mine  map[netip.Addr][]Reference // my references, as read
}

func (p *planner) read() {
	p.host = p.Hosts[p.want.Host]
	if p.host == nil {
		p.host = &Host{Name: p.want.Host, Addresses: p.addresses(p.want.Host), CNAME: p.cname(p.want.Host)}
	}
	name := p.names.claim(p.want.Host, p.w.Cluster)
	p.claim, p.raw, p.has = p.claimAt(name, place{host: p.want.Host, cluster: p.w.Cluster})
	p.mine = map[netip.Addr][]Reference{}
	for a, refs := range p.host.References {
		for _, r := range refs {
			if r.Cluster == p.w.Cluster {
				p.mine[a] = append(p.mine[a], r)
			}
		}
	}
}

// foreign returns why what stands under my name is another's.
func (p *planner) foreign() *Conflict {
	if b, ok := p.Beats[p.w.Cluster]; ok && b.Instance != p.w.Instance && !p.w.Takeover {
		return &Conflict{ClusterIDInUse, fmt.Sprintf("instance %s beats under the cluster id %s; give one of the two clusters another id",
			b.Instance, p.w.Cluster)}
	}
	if !p.has || p.w.Takeover {
		return nil
	}
	if p.claim.Instance != p.w.Instance {
		return &Conflict{ClusterIDInUse, fmt.Sprintf("instance %s publishes %s under the cluster id %s; give one of the two clusters another id",
			p.claim.Instance, p.want.Host, p.w.Cluster)}
	}
	if len(p.m.Sent) == 0 || p.m.Sent[joined(p.raw.Txt)] {
		return nil
	}
	if p.claim.Generation >= p.m.Generation {
		return &Conflict{ClusterIDInUse, fmt.Sprintf("somebody else wrote generation %d of %s under the cluster id %s; give one of the two clusters another id",
			p.claim.Generation, p.want.Host, p.w.Cluster)}
	}
	p.note(ZoneRolledBack, "the zone has generation %d of %s, older than %d, which it had before; it is written again",
		p.claim.Generation, p.want.Host, p.m.Generation)
	return nil
}

func joined(t []string) string { return strings.Join(t, "\n") }

func (p *planner) note(r Reason, format string, args ...any) {
	p.step.Notes = append(p.step.Notes, Conflict{r, fmt.Sprintf(format, args...)})
}

// asRead makes the set as it was read a prerequisite: all its RRs, or that there is none.
func (p *planner) asRead(name string, rrtype uint16) {
	p.step.Message.Prereqs = append(p.step.Message.Prereqs, p.State.asRead(name, rrtype)...)
}

func (s *State) asRead(name string, rrtype uint16) []dns.RR {
	var all []dns.RR
	for _, rr := range s.sets[name] {
		if rr.Header().Rrtype == rrtype {
			c := dns.Copy(rr)
			c.Header().Class, c.Header().Ttl = dns.ClassINET, 0
			all = append(all, c)
		}
	}
	if all == nil {
		return []dns.RR{bare(name, rrtype, dns.ClassNONE)}
	}
	return all
}

func bare(name string, rrtype, class uint16) dns.RR {
	return &dns.ANY{Hdr: dns.RR_Header{Name: name, Rrtype: rrtype, Class: class}}
}

func (p *planner) change1(rr dns.RR) { p.step.Message.Changes = append(p.step.Message.Changes, rr) }

func (p *planner) deleteSet(name string, rrtype uint16) { p.change1(bare(name, rrtype, dns.ClassANY)) }

func (p *planner) deleteRR(rr dns.RR) {
	c := dns.Copy(rr)
	c.Header().Class, c.Header().Ttl = dns.ClassNONE, 0
	p.change1(c)
}

func (p *planner) setOf(name string, rrtype uint16) (all []dns.RR) {
	for _, rr := range p.sets[name] {
		if rr.Header().Rrtype == rrtype {
			all = append(all, rr)
		}
	}
	return all
}

func (p *planner) ttlOf(name string, a netip.Addr) (ttl uint32, ok bool) {
	for _, rr := range p.sets[name] {
		if x, is := addressOf(rr); is && x == a {
			return rr.Header().Ttl, true
		}
	}
	return 0, false
}

// others returns the references to an address that are not mine.
func (p *planner) others(a netip.Addr) (refs []Reference) {
	for _, r := range p.host.References[a] {
		if r.Cluster != p.w.Cluster {
			refs = append(refs, r)
		}
	}
	return refs
}

// old returns the addresses that are mine as read, or were until a message of mine, sorted.
func (p *planner) old() []netip.Addr {
	all := slices.Collect(maps.Keys(p.mine))
	if p.has {
		all = append(all, p.claim.Addresses...)
	}
	for _, g := range p.m.Gone {
		all = append(all, g.Addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// regions returns the codes that I may have published an address for.
func (p *planner) regions(a netip.Addr) []string {
	var geos []string
	for _, r := range p.mine[a] {
		geos = append(geos, r.Geo)
	}
	if p.has && slices.Contains(p.claim.Addresses, a) {
		geos = append(geos, p.claim.Geo)
	}
	for _, g := range p.m.Gone {
		if pl := p.place(g.Name); g.Addr == a && pl.kind == levelName && !validCluster(pl.label) {
			geos = append(geos, pl.label)
		}
	}
	slices.Sort(geos)
	return slices.DeleteFunc(slices.Compact(geos), func(g string) bool { return g == "" })
}

// withdraw takes an address away where I no longer publish it: keep has the names where I do, ref my reference to it, nil for none. An
// address that another cluster publishes as well stays; the set of all who do is a prerequisite, so that of two who leave at once the
// second sees that it is the last.
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
		take(p.level(p.want.Host, geo), slices.ContainsFunc(others, func(r Reference) bool { return r.Geo == geo }))
	}
	var drop []dns.RR
	for _, rr := range p.setOf(refs, dns.TypeTXT) {
		if r, err := parseReference(rr.(*dns.TXT).Txt); err == nil && r.Cluster == p.w.Cluster && (ref == nil || r != *ref) {
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

// dropOwn empties my own level but for what stays.
func (p *planner) dropOwn(addrs []netip.Addr, target string) {
	own := p.level(p.want.Host, p.w.Cluster)
	for _, a := range p.addresses(own) {
		if !slices.Contains(addrs, a) {
			p.deleteRR(addressRR(own, a, 0))
		}
	}
	if c := p.cname(own); c != "" && c != target {
		p.deleteSet(own, dns.TypeCNAME)
	}
}

// leave ends the cluster's part of the host. The last one takes the strategy along, one who is not the last leaves it: then owners' set
// need not be compared, and nobody who leaves at the same time is in the way.
func (p *planner) leave() {
	name := p.names.claim(p.want.Host, p.w.Cluster)
	for _, a := range p.old() {
		p.withdraw(a, nil, nil)
	}
	p.dropOwn(nil, "")
	if len(p.setOf(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	owners := p.owners(p.want.Host)
	for _, rr := range p.setOf(owners, dns.TypeTXT) {
		if o, err := parseOwner(rr.(*dns.TXT).Txt); err == nil && o == p.w.Cluster {
			p.deleteRR(rr)
		}
	}
	if rest := slices.DeleteFunc(slices.Clone(p.host.Owners), func(o string) bool { return o == p.w.Cluster }); len(rest) == 0 {
		strategy := p.strategy(p.want.Host)
		for _, n := range []string{strategy, owners} {
			if len(p.setOf(n, dns.TypeTXT)) > 0 {
				p.asRead(n, dns.TypeTXT)
				p.deleteSet(n, dns.TypeTXT)
			} else if n == owners && !p.step.Message.Empty() {
				p.asRead(n, dns.TypeTXT)
			}
		}
	}
	if !p.step.Message.Empty() {
		p.step.Leaves = true
		p.asRead(name, dns.TypeTXT)
	}
}

// change brings the cluster's part of the host to what is wanted.
func (p *planner) change() {
	if p.step.Conflict = p.occupied(); p.step.Conflict != nil {
		return
	}
	if len(p.host.DefaultGeos) > 1 || p.want.DefaultGeo && len(p.host.DefaultGeos) == 1 && p.host.DefaultGeo != p.want.Geo {
		all := append(slices.Clone(p.host.DefaultGeos), p.want.Geo)
		slices.Sort(all)
		all = slices.DeleteFunc(slices.Compact(all), func(g string) bool { return g == "" })
		if len(all) > 1 {
			p.note(ConflictingDefault, "%s are each called the default region of %s; edges take %s until one is left", strings.Join(all, ", "), p.want.Host, all[0])
		}
	}
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
	p.dropOwn(slices.DeleteFunc(slices.Clone(want.Addresses), func(a netip.Addr) bool { return !slices.Contains(places[a], own) }), want.Target)

	p.addStrategy()
	p.add(want, places)
	same := p.has && len(p.setOf(p.names.claim(want.Host, p.w.Cluster), dns.TypeTXT)) == 1 && p.said(want)
	if same && p.step.Message.Empty() || p.step.Conflict != nil {
		p.step.Message, p.step.Gone = Message{}, nil
		if p.has {
			p.step.Claim, p.step.Next = joined(p.raw.Txt), max(p.m.Generation, p.claim.Generation)
		}
		return
	}
	p.replaceClaim(want)
}

// occupied returns why the host is not free for this publication.
func (p *planner) occupied() *Conflict {
	h := p.host
	others := len(h.Owners) - 1
	if !slices.Contains(h.Owners, p.w.Cluster) {
		others++
	}
	if h.Strategy != "" && others > 0 {
		if h.Strategy != p.want.Strategy {
			return &Conflict{ConflictingStrategy, fmt.Sprintf("%s has the strategy %s by %s, not %s; make them the same", h.Name, h.Strategy,
				strings.Join(h.Owners, ", "), p.want.Strategy)}
		}
		if h.TTL != p.want.TTL {
			return &Conflict{ConflictingTTL, fmt.Sprintf("%s has the TTL %d by %s, not %d; make them the same", h.Name, h.TTL,
				strings.Join(h.Owners, ", "), p.want.TTL)}
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
			if name == p.level(want.Host, p.w.Cluster) { // what goes from there makes room: it is mine alone
				for _, a := range p.addresses(name) {
					if typeOf(a) == rrtype && !slices.Contains(want.Addresses, a) {
						free[key]++
					}
				}
			}
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
	places := map[netip.Addr][]string{}
	for _, a := range want.Addresses {
		at := []string{}
		for _, name := range p.answers(&c) {
			if fits(name, a) {
				at = append(at, name)
			} else if name == want.Host {
				p.step.Unserved = append(p.step.Unserved, a)
				if want.Strategy == Simple && fits(own, a) {
					at = append(at, own)
				}
			}
		}
		places[a] = at
	}
	if n := len(p.step.Unserved); n > 0 {
		p.note(RRsetFull, "%s has as many addresses as the server takes, %d of one type; %d are left to edges. Raise max-records-per-type on BIND",
			want.Host, p.w.Limit, n)
	}
	return places
}

// addStrategy sets the strategy where there is none, or none but mine, and makes it a prerequisite where it stands.
func (p *planner) addStrategy() {
	name := p.strategy(p.want.Host)
	if p.host.Strategy == p.want.Strategy && p.host.TTL == p.want.TTL {
		return // a prerequisite, if there is anything to write at all: replaceClaim
	}
	if p.host.Strategy != "" { // occupied has seen that nobody else owns the host
		p.asRead(p.owners(p.want.Host), dns.TypeTXT)
	}
	if len(p.setOf(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	p.change1(txt(name, strategyText(p.want.Strategy, p.want.TTL)))
}

// add adds what is not there, or is there with another TTL.
func (p *planner) add(want Publication, places map[netip.Addr][]string) {
	full := func(name string) bool {
		if p.w.Limit > 0 && len(p.setOf(name, dns.TypeTXT)) >= p.w.Limit {
			p.step.Conflict = &Conflict{RRsetFull, fmt.Sprintf("%s has %d TXT RRs, as many as the server takes; raise max-records-per-type on BIND",
				name, p.w.Limit)}
			return true
		}
		return false
	}
	if !slices.Contains(p.host.Owners, p.w.Cluster) {
		if full(p.owners(want.Host)) {
			return
		}
		p.change1(txt(p.owners(want.Host), ownerText(p.w.Cluster)))
	}
	for _, a := range want.Addresses { // Knot keeps the old TTL of an RR that is there when it is added
		for _, name := range places[a] {
			if ttl, there := p.ttlOf(name, a); there && ttl != want.TTL {
				p.deleteRR(addressRR(name, a, 0))
			}
		}
	}
	guarded := map[string]bool{}
	for _, a := range want.Addresses {
		ref := Reference{p.w.Cluster, want.Geo}
		if !slices.Contains(p.mine[a], ref) {
			name := p.names.references(want.Host, a)
			if full(name) {
				return
			}
			p.change1(txt(name, ref.text()))
		}
		for _, name := range places[a] {
			if ttl, there := p.ttlOf(name, a); there && ttl == want.TTL {
				continue
			}
			if !guarded[name] && name != p.level(want.Host, p.w.Cluster) {
				guarded[name] = true // BIND and Knot say NOERROR and drop an address beside a CNAME
				p.asRead(name, dns.TypeCNAME)
			}
			p.change1(addressRR(name, a, want.TTL))
		}
	}
	own := p.level(want.Host, p.w.Cluster)
	if old := p.setOf(own, dns.TypeCNAME); want.Target != "" && (len(old) == 0 || p.cname(own) != want.Target || old[0].Header().Ttl != want.TTL) {
		if p.cname(own) == want.Target {
			p.deleteSet(own, dns.TypeCNAME)
		}
		p.change1(cnameRR(own, want.Target, want.TTL))
	}
}

// said reports whether my claim says what is wanted.
func (p *planner) said(want Publication) bool {
	c := Claim{Publication: want, Identity: p.w.Identity, Generation: p.claim.Generation}
	return joined(c.text()) == joined(p.raw.Txt)
}

// replaceClaim ends each change: the claim as read is a prerequisite, so no message that was sent before it can take effect after it.
func (p *planner) replaceClaim(want Publication) {
	name := p.names.claim(want.Host, p.w.Cluster)
	p.asRead(name, dns.TypeTXT)
	p.asRead(p.strategy(want.Host), dns.TypeTXT)
	p.step.Next = max(p.m.Generation, p.claim.Generation) + 1
	c := Claim{Publication: want, Identity: p.w.Identity, Generation: p.step.Next}
	p.step.Claim = joined(c.text())
	if len(p.setOf(name, dns.TypeTXT)) > 0 {
		p.deleteSet(name, dns.TypeTXT)
	}
	p.change1(txt(name, c.text()))
}
