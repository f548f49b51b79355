package zone

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Writer is the cluster for which Plan plans, with what it knows about its server and about other writers under its ID.
type Writer struct {
	Identity
	Limit int // maximum number of RRs in an RRset on the server (BIND: max-records-per-type); 0: unknown
	// the instance that wrote under this cluster's ID before is known to be dead, so its records are treated as this writer's
	Takeover bool
	// the cluster's heartbeat in the zone is this writer's, so claims of another instance under the cluster's ID are older leftovers
	Heir bool
}

// Memory is what a writer remembers of its own updates for one host. With the zero value, the writer treats everything under its
// identity in the zone as its own.
type Memory struct {
	Generation uint64 // the highest generation that the writer has used, or read in its claim of the host
	// by the strings of the TXT record: the writer's claims that the zone may have, which are the one last read back and those sent since
	Sent map[string]bool
	Gone []Gone // deletions in updates that were planned or sent, until a read confirms them
}

// Gone is an address that an update deletes, and the name from which it deletes it.
type Gone struct {
	Name string
	Addr netip.Addr
}

// Reason names, in one word for conditions and metrics, why a publication is not in the zone or not as intended.
type Reason string

// The reasons that a plan can have. ConflictingStrategyDiscovered is from Kuadrant's RFC 0008.
const (
	ConflictingStrategy Reason = "ConflictingStrategyDiscovered"
	ConflictingTTL      Reason = "ConflictingTTL"
	// a CNAME, DNAME or delegation in the zone hides the host's addresses, or the host is a name server of the zone
	ConflictingName    Reason = "ConflictingName"
	ClusterIDInUse     Reason = "ClusterIDInUse"        // another writer uses this cluster's ID
	ConflictingDefault Reason = "ConflictingDefaultGeo" // clusters want different default regions; each still writes its records
	ZoneRolledBack     Reason = "ZoneRolledBack"        // the zone has an older claim than this cluster wrote last; the cluster writes again
	ForeignAddresses   Reason = "ForeignAddresses"      // the host has addresses that no cluster wrote; they stay
	// an RRset is at the server's limit: as a note, some addresses are not at the host; as a conflict, a TXT record does not fit
	RRsetFull Reason = "RRsetFull"
)

// Conflict is why a publication is not in the zone or not as intended, with a message for the user.
type Conflict struct {
	Reason  Reason
	Message string
}

func conflict(r Reason, format string, args ...any) *Conflict {
	return &Conflict{r, fmt.Sprintf(format, args...)}
}

// Step is the next change of the zone toward what a cluster wants to publish for one host. If it has no conflict and an empty message,
// there is nothing to write.
type Step struct {
	Host     string
	Message  Message
	Conflict *Conflict  // if not nil, nothing is written
	Notes    []Conflict // facts to report that do not prevent writing
	// the cluster's claim as read from the zone, as a key of Memory.Sent; empty if there is none
	Stands string
	// the claim that the cluster has after the message, as a key of Memory.Sent; empty if it then has none, and for most conflicts
	Claim    string
	Next     uint64       // Memory.Generation, or the generation of Claim if that is higher
	Gone     []Gone       // addresses that the message deletes at the host or at the names of its regions
	Unserved []netip.Addr // addresses that do not fit into the host's RRset (room.go)
	Leaves   bool         // the message removes this cluster from the host, or TXT records that were left at a host without clusters

	ttlBefore uint32 // the host's TTL in the zone as read
}

// Done reports whether there is nothing to write and no conflict.
func (st *Step) Done() bool { return st.Conflict == nil && st.Message.Empty() }

// atOnce is the maximum number of addresses by which one message changes those that a cluster has at a host, so that the message stays
// below 64 KiB. Further messages change the rest. A first publication and a withdrawal of all addresses need only one message.
const atOnce = 100

// Plan returns the next step for a host: toward publishing want or, if want is empty, toward removing this cluster from the host. It
// compares want with the zone, so a step that was interrupted or undone is planned again.
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

// PlanRemoval returns the step that removes a dead cluster from a host, as if that cluster had left by itself. The caller must add the
// prerequisite that the dead cluster's heartbeat has not changed.
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
	claim Claim // this cluster's TXT record for the host, as read from the zone
	has   bool  // the zone has such a record
	raw   *dns.TXT
	mine  map[netip.Addr][]Reference // this cluster's references to each address, as read
	ttl   uint32                     // TTL of the addresses and the CNAME that change writes
	wants Strategy                   // the strategy that this cluster wants, if the host keeps another one; else empty
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

// foreign returns a conflict if another writer, which may be alive, has written under this cluster's ID. If the zone went back to an
// older claim of this writer, foreign only adds the note ZoneRolledBack.
func (p *planner) foreign() *Conflict {
	if b, ok := p.Beats[p.w.Cluster]; ok && b.Instance != p.w.Instance && !p.w.Takeover {
		return conflict(ClusterIDInUse, "instance %s sends heartbeats under the cluster id %s; give one of the two clusters another id",
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
	p.note(ZoneRolledBack, "the zone has generation %d of %s, older than %d, which this cluster sent last; it is written again",
		p.claim.Generation, p.want.Host, p.m.Generation)
	return nil
}

func joined(t []string) string { return strings.Join(t, "\n") }

func (p *planner) note(r Reason, format string, args ...any) {
	p.step.Notes = append(p.step.Notes, Conflict{r, fmt.Sprintf(format, args...)})
}

// asRead adds to the step the prerequisite that AsRead returns.
func (p *planner) asRead(name string, rrtype uint16) {
	p.step.Message.Prereqs = append(p.step.Message.Prereqs, p.State.AsRead(name, rrtype)...)
}

// AsRead returns the prerequisite that an RRset in the zone is exactly the one in s, or does not exist if s has none. Prerequisites do
// not compare TTLs (RFC 2136 section 2.4).
func (s *State) AsRead(name string, rrtype uint16) []dns.RR {
	all := s.RRset(name, rrtype)
	for i, rr := range all {
		all[i] = inMessage(rr, dns.ClassINET)
	}
	if all == nil {
		return []dns.RR{bare(name, rrtype, dns.ClassNONE)}
	}
	return all
}

// Deletion returns the change that deletes one RR.
func Deletion(rr dns.RR) dns.RR { return inMessage(rr, dns.ClassNONE) }

// inMessage returns a copy of an RR for a message's prerequisites or deletions, where all TTLs are 0.
func inMessage(rr dns.RR, class uint16) dns.RR {
	c := dns.Copy(rr)
	c.Header().Class, c.Header().Ttl = class, 0
	return c
}

func bare(name string, rrtype, class uint16) dns.RR {
	return &dns.ANY{Hdr: dns.RR_Header{Name: name, Rrtype: rrtype, Class: class}}
}

func (p *planner) write(rr dns.RR) { p.step.Message.Changes = append(p.step.Message.Changes, rr) }

func (p *planner) deleteSet(name string, rrtype uint16) { p.write(bare(name, rrtype, dns.ClassANY)) }

func (p *planner) deleteRR(rr dns.RR) { p.write(Deletion(rr)) }

// RRset returns the RRs of a canonical name and type. The caller must not modify them, because the state uses them.
func (s *State) RRset(name string, rrtype uint16) (all []dns.RR) {
	for _, rr := range s.sets[name] {
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

// others returns the references to an address that are not this cluster's. The zero Reference is one of them: it stands for an address that
// the host had before any cluster published it.
func (p *planner) others(a netip.Addr) (refs []Reference) {
	for _, r := range p.host.References[a] {
		if r.Cluster != p.w.Cluster {
			refs = append(refs, r)
		}
	}
	return refs
}

// before returns the host's addresses that no cluster wrote and, by record type, the TTL that such addresses had before the first cluster
// published the host.
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

// old returns, sorted, the addresses that this cluster has at the host in the zone, and those that its own messages deleted without a
// confirmation by a read.
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

// regions returns the codes of the regions for which this cluster may have published an address.
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
