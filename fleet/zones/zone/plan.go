package zone

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Writer identifies the cluster that plans, and sets the limits of its plans.
type Writer struct {
	Identity
	Limit    int  // RRs that the server allows in a set (BIND: max-records-per-type); 0: no known limit
	Takeover bool // this writer owns what another instance wrote under this cluster's id, because that instance is known to be dead
	Heir     bool // the heartbeat is this writer's, so claims of another instance predate it
}

// Memory is what a writer remembers of its own messages for one host. The zero value is a fresh start: the writer then treats whatever it
// finds under its identity as its own.
type Memory struct {
	Generation uint64          // the highest generation that it has used
	Sent       map[string]bool // claims by this writer that the zone may hold: the one read back last, and those sent since
	Gone       []Gone          // addresses that its messages deleted
}

// Gone is an address that a message deleted from a name.
type Gone struct {
	Name string
	Addr netip.Addr
}

// Reason is why a publication is not in the zone, or not as intended. It is a word for conditions and metrics.
type Reason string

// The reasons. ConflictingStrategyDiscovered and RecordsMissing are from Kuadrant's RFC 0008.
const (
	ConflictingStrategy Reason = "ConflictingStrategyDiscovered"
	ConflictingTTL      Reason = "ConflictingTTL"
	ConflictingName     Reason = "ConflictingName"       // a CNAME or a delegation is at a name that the host's addresses need
	ClusterIDInUse      Reason = "ClusterIDInUse"        // another instance writes under this cluster's id
	ConflictingDefault  Reason = "ConflictingDefaultGeo" // clusters name two default regions; every cluster still writes
	ZoneRolledBack      Reason = "ZoneRolledBack"        // the zone has an older claim than this writer wrote; the writer writes again
	ForeignAddresses    Reason = "ForeignAddresses"      // manually added addresses are at the host; they stay
	RRsetFull           Reason = "RRsetFull"             // the server's limit prevents more addresses at the host
)

// Conflict is a reason with a message for a person.
type Conflict struct {
	Reason  Reason
	Message string
}

func conflict(r Reason, format string, args ...any) *Conflict {
	return &Conflict{r, fmt.Sprintf(format, args...)}
}

// Step is one change that brings the zone nearer to what a cluster wants to publish for one host. If it has no conflict and an empty
// message, the zone is already as wanted.
type Step struct {
	Host     string
	Message  Message
	Conflict *Conflict    // nothing is written while it lasts
	Notes    []Conflict   // what a person should know; they do not prevent writing
	Stands   string       // the writer's claim as read, in the same form as Claim; empty: none
	Claim    string       // the claim that the message writes, or the present one if it writes none, in the form of Memory.Sent; empty: none
	Next     uint64       // the generation of that claim, or the last one used
	Gone     []Gone       // addresses that the message deletes
	Unserved []netip.Addr // addresses not published: the host's record set has no room (room.go)
	Leaves   bool         // the message ends the cluster's part, or removes bookkeeping without an owner

	ttlBefore uint32 // the host's TTL as read
}

// Done reports whether the zone is as wanted.
func (st *Step) Done() bool { return st.Conflict == nil && st.Message.Empty() }

// atOnce is how many addresses one message changes; the next messages bring the rest. It keeps a message within 64 KiB.
const atOnce = 100

// Plan returns the next message for want's host: towards what want publishes, or, if want is empty, towards leaving the host. It compares
// everything with the zone and nothing with an earlier plan, so a step that was interrupted or undone is planned again.
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

// PlanRemoval returns the message that removes a dead cluster's part of one host, as if the cluster had left by itself. The caller adds
// the prerequisite that the cluster is dead.
func (s *State) PlanRemoval(host, cluster string) Step {
	p := planner{State: s, w: Writer{Identity: Identity{Cluster: cluster}}, want: Publication{Host: host}, step: Step{Host: host}}
	p.read()
	p.leave()
	return p.step
}

// planner plans one step for one host.
type planner struct {
	*State
	w    Writer
	m    Memory
	want Publication
	step Step

	host  *Host
	claim Claim // mine, as read
	has   bool  // the zone has a claim of mine
	raw   *dns.TXT
	mine  map[netip.Addr][]Reference // my references, as read
	ttl   uint32                     // of the host's records after the step
	wants Strategy                   // the strategy that this cluster wants, if the host keeps another one
}

func (p *planner) read() {
	p.host = p.Hosts[p.want.Host]
	if p.host == nil {
		p.host = &Host{Name: p.want.Host, Addresses: p.addresses(p.want.Host), CNAME: p.cname(p.want.Host)}
	}
	p.step.ttlBefore = p.host.TTL
	name := p.names.claim(p.want.Host, p.w.Cluster)
	p.claim, p.raw, p.has = p.claimAt(name, place{host: p.want.Host, cluster: p.w.Cluster})
	if p.has {
		p.step.Stands = joined(p.raw.Txt)
	}
	p.mine = map[netip.Addr][]Reference{}
	for a, refs := range p.host.References {
		for _, r := range refs {
			if r.Cluster == p.w.Cluster {
				p.mine[a] = append(p.mine[a], r)
			}
		}
	}
}

// foreign returns a conflict if another instance wrote what is under my cluster id.
func (p *planner) foreign() *Conflict {
	if b, ok := p.Beats[p.w.Cluster]; ok && b.Instance != p.w.Instance && !p.w.Takeover {
		return conflict(ClusterIDInUse, "instance %s beats under the cluster id %s; give one of the two clusters another id",
			b.Instance, p.w.Cluster)
	}
	if !p.has || p.w.Takeover {
		return nil
	}
	if p.claim.Instance != p.w.Instance && p.w.Heir {
		return nil
	}
	if p.claim.Instance != p.w.Instance {
		return conflict(ClusterIDInUse, "instance %s publishes %s under the cluster id %s; give one of the two clusters another id",
			p.claim.Instance, p.want.Host, p.w.Cluster)
	}
	if len(p.m.Sent) == 0 || p.m.Sent[joined(p.raw.Txt)] {
		return nil
	}
	if p.claim.Generation >= p.m.Generation {
		return conflict(ClusterIDInUse,
			"another writer has made generation %d of %s under the cluster id %s; give one of the two clusters another id",
			p.claim.Generation, p.want.Host, p.w.Cluster)
	}
	p.note(ZoneRolledBack, "the zone has generation %d of %s, older than %d, which it had before; it is written again",
		p.claim.Generation, p.want.Host, p.m.Generation)
	return nil
}

func joined(t []string) string { return strings.Join(t, "\n") }

func (p *planner) note(r Reason, format string, args ...any) {
	p.step.Notes = append(p.step.Notes, Conflict{r, fmt.Sprintf(format, args...)})
}

// asRead adds the set as it was read as a prerequisite: exactly its RRs, or none if there were none.
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

func (p *planner) write(rr dns.RR) { p.step.Message.Changes = append(p.step.Message.Changes, rr) }

func (p *planner) deleteSet(name string, rrtype uint16) { p.write(bare(name, rrtype, dns.ClassANY)) }

func (p *planner) deleteRR(rr dns.RR) {
	c := dns.Copy(rr)
	c.Header().Class, c.Header().Ttl = dns.ClassNONE, 0
	p.write(c)
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

// others returns the references to an address by other clusters.
func (p *planner) others(a netip.Addr) (refs []Reference) {
	for _, r := range p.host.References[a] {
		if r.Cluster != p.w.Cluster {
			refs = append(refs, r)
		}
	}
	return refs
}

// before returns the addresses at the host that no cluster wrote, and, by type, the TTLs that such addresses had before the first cluster
// published.
func (p *planner) before() (foreign []netip.Addr, ttls map[uint16]uint32) {
	old := p.old()
	for _, a := range p.addresses(p.want.Host) {
		refs := p.host.References[a]
		if len(refs) == 0 && !slices.Contains(old, a) || slices.Contains(refs, Reference{}) {
			foreign = append(foreign, a)
		}
	}
	if texts := p.texts(p.strategy(p.want.Host)); len(texts) == 1 {
		return foreign, parseBefore(texts[0].Txt)
	}
	ttls = map[uint16]uint32{}
	for _, a := range foreign {
		ttls[typeOf(a)], _ = p.ttlOf(p.want.Host, a)
	}
	return foreign, ttls
}

// old returns the addresses that are mine as read, or were until a message of mine deleted them, sorted.
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

// regions returns the region codes for which I may have published an address.
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
