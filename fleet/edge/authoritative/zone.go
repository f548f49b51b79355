package authoritative

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/coredns/coredns/plugin/file"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/edge/loadbalance"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// Zone is one zone as it is served: its records, from which CoreDNS's own lookup answers as a plain server does, and for each host the
// clusters to choose from. A Zone in use is never modified.
type Zone struct {
	origin string
	plain  *file.Zone
	hosts  map[string]*host      // by canonical name; "*.x." for a wildcard
	byWire map[string]*plainHost // by name in wire format: the hosts whose answers the fast path can make
	soa    *dns.SOA
	// ignored is the number of records below _neardns that are no valid bookkeeping.
	ignored    int
	beats      map[string]zone.Beat // by cluster ID
	heartbeats *heartbeats
}

// host is a name that clusters publish.
type host struct {
	simple     bool // strategy Simple: one candidate has the addresses of all clusters
	candidates []loadbalance.Candidate
	answers    []answer // in the order of candidates
}

// answer has the records of one cluster at a host, under the host's name.
type answer struct {
	addresses [2][]address // by family
	alias     *dns.CNAME   // in place of addresses; nil: none
	// the cluster that publishes these records; nil if the answer has the addresses of all clusters (strategy Simple)
	cluster *cluster
}

type address struct {
	rr     dns.RR
	wire   []byte // the record's bytes in an answer; its name is a pointer to the question section
	target Target // nil: nothing is known about the address's health, so the address counts as healthy
}

func (a *address) well() bool { return a.target == nil || a.target.Well() }

// family returns the index of A or AAAA in answer.addresses; ok is false for other types.
func family(qtype uint16) (i int, ok bool) {
	switch qtype {
	case dns.TypeA:
		return 0, true
	case dns.TypeAAAA:
		return 1, true
	}
	return 0, false
}

// Target reports whether an address is healthy; *healthcheck.Target is one.
type Target interface{ Well() bool }

// Watch sets the health checks of a zone, by cluster, and returns the Target of each check that is probed; see healthcheck.Checker.Set.
type Watch func(zone string, checks map[string][]healthcheck.Check) map[healthcheck.Check]Target

// compile makes a Zone from records. It calls watch at most once, with the health checks in them. beats has the heartbeats' state; pass the
// same one for each version of the zone.
//
// Whatever a cluster's TXT records contain, the answers for a host have only addresses that the zone has at the host or at the cluster's
// own name below klb, or the CNAME there if the cluster publishes a hostname.
func compile(origin string, rrs []dns.RR, watch Watch, beats *heartbeats) (*Zone, error) {
	state, err := zone.Parse(origin, rrs)
	if err != nil {
		return nil, err
	}
	z := &Zone{origin: state.Origin, hosts: map[string]*host{}, ignored: state.Ignored, beats: state.Beats, heartbeats: beats}
	z.plain = file.NewZone(z.origin, "")
	for _, rr := range rrs {
		if soa, ok := rr.(*dns.SOA); ok {
			z.soa = soa
			continue
		}
		if rr.Header().Rrtype == dns.TypeNSEC3 || rr.Header().Rrtype == dns.TypeNSEC3PARAM {
			continue // CoreDNS's Insert refuses them
		}
		if err := z.plain.Insert(dns.Copy(rr)); err != nil { // a copy, because Insert changes the case of letters
			return nil, fmt.Errorf("zone %s: %w", z.origin, err)
		}
	}
	if err := z.plain.Insert(dns.Copy(z.soa)); err != nil {
		return nil, fmt.Errorf("zone %s: %w", z.origin, err)
	}
	checks := map[string][]healthcheck.Check{}
	for name, h := range state.Hosts {
		for cluster, c := range h.Claims {
			for _, a := range c.Addresses {
				// Check only addresses that can be in an answer. A TXT record costs its writer nothing, but the number of targets is
				// limited.
				if check, ok := healthcheck.Of(name, a, c.Health); ok && h.Has(cluster, a) {
					checks[cluster] = append(checks[cluster], check)
				}
			}
		}
	}
	watched := watch(z.origin, checks)
	for name, h := range state.Hosts {
		if made := z.host(h, watched); made != nil {
			z.hosts[name] = made
		}
	}
	if z.byWire, err = z.plainHosts(); err != nil {
		return nil, fmt.Errorf("zone %s: %w", z.origin, err)
	}
	return z, nil
}

// host returns each cluster's records at a host. It returns nil if the zone must answer as a plain server does, because the host has a
// CNAME or no strategy, is at or below a delegation or below a DNAME, or has no record of a cluster.
func (z *Zone) host(h *zone.Host, watched map[healthcheck.Check]Target) *host {
	if h.CNAME != "" || h.Strategy == "" {
		return nil
	}
	if f := z.lookup(h.Name, dns.TypeA); f.result == file.Delegation || slices.ContainsFunc(f.answer, isDNAME) {
		return nil
	}
	out := &host{simple: h.Strategy == zone.Simple}
	for _, cluster := range slices.Sorted(maps.Keys(h.Claims)) {
		c := h.Claims[cluster]
		a := gathered{answer: answer{cluster: z.heartbeats.of(cluster)}}
		for _, ip := range c.Addresses {
			if !h.Has(cluster, ip) {
				continue
			}
			var target Target = a.cluster
			if check, ok := healthcheck.Of(h.Name, ip, c.Health); ok && watched[check] != nil {
				target = watched[check]
			}
			a.add(h, ip, target)
		}
		// The apex cannot have a CNAME.
		if target := h.Targets[cluster]; c.Target != "" && target == c.Target && h.Name != z.origin {
			a.alias = &dns.CNAME{Hdr: dns.RR_Header{Name: h.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: h.TTL}, Target: target}
		}
		if a.alias == nil && len(a.addresses[0])+len(a.addresses[1]) == 0 {
			continue
		}
		isDefault := h.DefaultGeo != "" && c.Geo == h.DefaultGeo
		out.candidates = append(out.candidates, loadbalance.Candidate{Geo: c.Geo, Default: isDefault, Weight: c.Weight})
		out.answers = append(out.answers, a.answer)
	}
	if len(out.answers) == 0 {
		return nil
	}
	if out.simple {
		out.join(h)
	}
	return out
}

// join replaces a host's clusters by a single one that has all their addresses, and all other addresses of the zone at the host.
func (h *host) join(of *zone.Host) {
	var all gathered
	for _, a := range h.answers {
		for _, list := range a.addresses {
			for _, one := range list {
				all.add(of, addressOf(one.rr), one.target)
			}
		}
	}
	for _, ip := range of.Addresses {
		all.add(of, ip, nil)
	}
	h.candidates, h.answers = []loadbalance.Candidate{{Weight: 1}}, []answer{all.answer}
}

// gathered is an answer under construction. It has an index, because a name may have tens of thousands of addresses.
type gathered struct {
	answer
	at map[netip.Addr]int // index in the list of its family
}

// add adds an address with its target. If the answer has the address already, it merges the two targets.
func (a *gathered) add(h *zone.Host, ip netip.Addr, t Target) {
	i, header := 0, dns.RR_Header{Name: h.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: h.TTL}
	var rr dns.RR = &dns.A{Hdr: header, A: ip.AsSlice()}
	if ip.Is6() {
		i, header.Rrtype = 1, dns.TypeAAAA
		rr = &dns.AAAA{Hdr: header, AAAA: ip.AsSlice()}
	}
	at, there := a.at[ip]
	if !there {
		if a.at == nil {
			a.at = map[netip.Addr]int{}
		}
		a.at[ip] = len(a.addresses[i])
		a.addresses[i] = append(a.addresses[i], address{rr, wireOf(rr), t})
	} else {
		a.addresses[i][at].target = merge(a.addresses[i][at].target, t)
	}
}

// merge returns the Target of an address that two clusters publish: a health check's, if there is one; otherwise the address is healthy
// unless both clusters are silent (see heartbeats). nil is the Target of an address that no cluster publishes.
func merge(a, b Target) Target {
	switch {
	case b == nil:
		return a
	case a == nil, ofHeartbeats(a) && !ofHeartbeats(b):
		return b
	case ofHeartbeats(a) && ofHeartbeats(b):
		return either{a, b}
	}
	return a
}

func ofHeartbeats(t Target) bool {
	switch t.(type) {
	case *cluster, either:
		return true
	}
	return false
}

// wireOf returns the bytes of an address record in an answer, with a pointer to the name in the question section (RFC 1035, section 4.1.4).
func wireOf(rr dns.RR) []byte {
	b := make([]byte, dns.Len(rr))
	n, _ := dns.PackRR(rr, b, 0, map[string]int{rr.Header().Name: msg.HeaderSize}, true) // an address, at a name that came in a message
	return slices.Clone(b[:n])
}

// found is the answer of a plain server.
type found struct {
	answer, ns, extra []dns.RR
	result            file.Result
}

// lookup returns the answer of a plain server, by CoreDNS's own lookup. name must be canonical.
func (z *Zone) lookup(name string, qtype uint16) found {
	m := new(dns.Msg)
	m.Question = []dns.Question{{Name: name, Qtype: qtype, Qclass: dns.ClassINET}}
	return z.find(requestOf(z, m), name)
}

// requestOf returns the query m in the form that CoreDNS's lookup needs.
func requestOf(z *Zone, m *dns.Msg) request.Request {
	client := &responsewriter.Capture{Base: responsewriter.Base{Local: new(net.TCPAddr), Remote: new(net.TCPAddr)}}
	return request.Request{W: client, Req: m, Zone: z.origin}
}

// find is like lookup, but for a whole query: its DNSSEC OK bit decides whether the answer has DNSSEC records.
func (z *Zone) find(r request.Request, name string) (f found) {
	f.answer, f.ns, f.extra, f.result = z.plain.Lookup(context.Background(), r, name)
	// For a CNAME to a name without records in the zone, CoreDNS answers SERVFAIL. Answer with the CNAME instead; the client can follow it.
	if f.result == file.ServerFailure && len(f.answer) > 0 {
		f.result, f.ns = file.Success, nil
	}
	for i, rr := range f.ns { // RFC 2308, section 3: the TTL is the lower of the SOA's own and MINIMUM; CoreDNS uses the SOA's own
		if soa, ok := rr.(*dns.SOA); ok && soa.Minttl < soa.Hdr.Ttl {
			f.ns = slices.Clone(f.ns)
			soa = dns.Copy(soa).(*dns.SOA) //nolint:errcheck,forcetypeassert // a copy has its type
			soa.Hdr.Ttl = soa.Minttl
			f.ns[i] = soa
		}
	}
	return f
}

// isDNAME reports whether a record is a DNAME, which hides all names below its own (RFC 6672, section 2.4).
func isDNAME(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDNAME }

// named returns a copy of a record under another name.
func named(rr dns.RR, name string) dns.RR {
	out := dns.Copy(rr)
	out.Header().Name = name
	return out
}

// addressOf returns the address in an A or AAAA record.
func addressOf(rr dns.RR) netip.Addr {
	var a netip.Addr
	switch x := rr.(type) {
	case *dns.A:
		a, _ = netip.AddrFromSlice(x.A)
		return a.Unmap() // the library uses 16 bytes
	case *dns.AAAA:
		a, _ = netip.AddrFromSlice(x.AAAA)
	}
	return a
}

// state returns whether the cluster with index i has addresses of the family or a CNAME, and whether one of these is healthy.
func (h *host) state(i, family int) loadbalance.State {
	a := &h.answers[i]
	if a.alias != nil {
		if a.cluster.Well() {
			return loadbalance.Well
		}
		return loadbalance.Sick
	}
	if len(a.addresses[family]) == 0 {
		return loadbalance.Absent
	}
	for n := range a.addresses[family] {
		if a.addresses[family][n].well() {
			return loadbalance.Well
		}
	}
	return loadbalance.Sick
}

// choose returns the index of the cluster for a client at place, and the reason of the choice; -1 if no cluster has an address of the
// family or a CNAME. draw is a random number. choose does not allocate.
func (h *host) choose(family int, place []string, draw uint64) (int, loadbalance.Reason) {
	return loadbalance.Of(h.candidates, place, func(i int) loadbalance.State { return h.state(i, family) }, draw)
}

// answerMost is the maximum number of addresses in an answer. Knot and PowerDNS allow tens of thousands at one name, which would make
// each query slow. BIND allows 100 of a type at a name by default, and an answer over UDP holds fewer than 80.
const answerMost = 1_000

// addresses appends addresses of one family of the cluster with index i, beginning at one that draw selects, and no more than answerMost.
// If at least one is healthy, it appends only healthy ones.
func (h *host) addresses(to []*address, i, family int, draw uint64) []*address {
	list, well := h.answers[i].addresses[family], h.state(i, family) == loadbalance.Well
	for n := range list {
		if len(to) == answerMost {
			break
		}
		one := &list[(n+int(draw%uint64(len(list))))%len(list)]
		if !well || one.well() {
			to = append(to, one)
		}
	}
	if len(to) == 0 { // all became unhealthy since the call of state
		for n := range list[:min(len(list), answerMost)] {
			to = append(to, &list[n])
		}
	}
	return to
}
