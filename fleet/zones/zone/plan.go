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
	Heir     bool // the heartbeat is this writer's: claims of another instance are from before it
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
	ForeignAddresses    Reason = "ForeignAddresses"      // a person's addresses are at the host: they stay
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
	Stands   string       // the writer's claim as read, in the same form; empty: none
	Claim    string       // the claim that the message writes, or that stands where there is none, as Memory's Sent has it; empty: none
	Next     uint64       // the generation of that claim, or the last one
	Gone     []Gone       // what the message takes away
	Unserved []netip.Addr // of the publication, not at the host for want of room
	Leaves   bool         // the message ends the cluster's part, or prunes what nobody owns

	ttlBefore uint32 // of the host, as read
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
	ttl   uint32                     // of the host's records, after the step
	wants Strategy                   // the strategy that is wanted, if the host keeps another one
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

// foreign returns why what stands under my name is another's.
func (p *planner) foreign() *Conflict {
	if b, ok := p.Beats[p.w.Cluster]; ok && b.Instance != p.w.Instance && !p.w.Takeover {
		return &Conflict{ClusterIDInUse, fmt.Sprintf("instance %s beats under the cluster id %s; give one of the two clusters another id",
			b.Instance, p.w.Cluster)}
	}
	if !p.has || p.w.Takeover {
		return nil
	}
	if p.claim.Instance != p.w.Instance && p.w.Heir {
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

// others returns the references to an address that are not mine.
func (p *planner) others(a netip.Addr) (refs []Reference) {
	for _, r := range p.host.References[a] {
		if r.Cluster != p.w.Cluster {
			refs = append(refs, r)
		}
	}
	return refs
}

// before returns the addresses at the host that no cluster wrote, and the TTLs that such addresses had before the first cluster.
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
