// Package authoritative is a CoreDNS plugin that answers queries for zones that several clusters share. For a host with strategy
// LoadBalanced, it chooses a cluster by region, health and weight, and answers with that cluster's addresses; for a host with strategy
// Simple, it answers with the addresses of all clusters. It leaves out unhealthy addresses while others are healthy. For all other names
// it answers as a plain authoritative server does.
//
// It guarantees that an answer is a part, and never an empty part, of the answer of a plain server, so that edges and plain servers can
// serve the same zone. Exceptions are ANY, hostnames, and addresses that did not fit at the host: the zone has the last two only at
// CLUSTER.klb.HOST. Region and health only narrow the choice. The plugin never forwards or recurses, and never answers with an address that
// the zone does not have for the host.
//
// It does not read zones: its caller sets them. If the caller cannot read a zone any more, the last version is served, however old it
// is.
package authoritative

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/file"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/fleet/edge/loadbalance"
	"github.com/neardns/neardns/internal/dns/fairshare"
	"github.com/neardns/neardns/internal/dns/fastpath"
)

// Name is the plugin's directive.
const Name = "shared"

// Options are the options that can change while the server runs. Their lists must not be modified.
type Options struct {
	Rate      Rate
	Resolvers []netip.Prefix // senders whose EDNS client subnet is used
	// Notified is called when a NOTIFY for a served zone arrives. It returns whether the sender may send one, and must not block. nil: no
	// sender may.
	Notified func(zone string, sender netip.Addr) (taken bool)
}

// Server is the state that all instances of the plugin share. Its methods are safe for concurrent use.
type Server struct {
	options atomic.Pointer[options]
	locator atomic.Pointer[geo.Locator]
	zones   atomic.Pointer[zones]
	counts  *counts
	draw    func() uint64 // returns a random number, uniform over all values

	mu sync.Mutex // held while zones is replaced
}

// zones are all zones of the configuration. A value is never modified, only replaced.
type zones struct {
	by    map[string]*Zone      // by origin; nil: the zone was not read yet, so queries for it are refused
	plain fastpath.Zones[*Zone] // the same zones, for the fast path
}

// New returns a server without zones and without location data.
func New(o Options) *Server {
	s := &Server{counts: newCounts(), draw: rand.Uint64} //nolint:gosec // an attacker gains nothing by guessing it
	s.Configure(o)
	s.SetLocator(new(geo.Locator))
	s.zones.Store(new(zones))
	return s
}

// options are Options with the rate limiter that belongs to them.
type options struct {
	Options
	limit *limiter
}

// Configure sets the options for all queries from now on. If the rate is the same as before, the limiter keeps its counts.
func (s *Server) Configure(o Options) {
	next := &options{Options: o}
	if old := s.options.Load(); old != nil && old.Rate.same(o.Rate) {
		next.limit = old.limit
	} else {
		next.limit = newLimiter(o.Rate)
	}
	s.options.Store(next)
}

// SetLocator sets the data by which clients are located from now on. The caller must not modify l any more.
func (s *Server) SetLocator(l *geo.Locator) { s.locator.Store(l) }

// Taker returns a function that serves a zone with new records in place of the previous ones. If the records are invalid, that function
// returns an error, and the previous ones stay served. Only one goroutine at a time may call it. Before its first success, queries for the
// zone are refused, even if a zone above it is served.
func (s *Server) Taker(origin string, watch Watch) func(records []dns.RR) error {
	_ = s.change(func(by map[string]*Zone) { by[origin] = nil }) // set returns the error of an invalid origin
	beats := new(heartbeats)
	return func(records []dns.RR) error {
		z, err := compile(origin, records, watch, beats)
		if err == nil {
			err = s.set(z)
		}
		return err
	}
}

// Current must be called each time the primary has confirmed that the served zone is current. It returns the IDs of the silent clusters,
// whose heartbeats have stopped. Those of their addresses that no health check probes count as unhealthy from then on.
func (s *Server) Current(origin string) (silent []string) {
	if z := s.zones.Load().by[origin]; z != nil {
		silent = z.heartbeats.observe(z.beats, time.Now())
	}
	return silent
}

// set serves a zone, in place of the version before.
func (s *Server) set(z *Zone) error {
	return s.change(func(by map[string]*Zone) { by[z.origin] = z })
}

// Drop stops serving a zone.
func (s *Server) Drop(origin string) {
	_ = s.change(func(by map[string]*Zone) { delete(by, origin) }) // no error: the remaining names were valid before
}

// change replaces zones by a copy that the function change has modified.
func (s *Server) change(change func(by map[string]*Zone)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &zones{by: maps.Clone(s.zones.Load().by)}
	if next.by == nil {
		next.by = map[string]*Zone{}
	}
	change(next.by)
	for origin, one := range next.by {
		if err := next.plain.Add(origin, one); err != nil {
			return fmt.Errorf("zone %s: %w", origin, err)
		}
	}
	s.zones.Store(next)
	return nil
}

// Setup is the directive's setup function.
func (s *Server) Setup(c *caddy.Controller) error {
	for c.Next() {
		if len(c.RemainingArgs()) != 0 || c.NextBlock() {
			return plugin.Error(Name, c.Err("takes no arguments"))
		}
	}
	dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return s })
	return nil
}

// Name implements plugin.Handler.
func (s *Server) Name() string { return Name }

// zone returns the zone that contains a canonical name, or nil if there is none or it was not read yet. A DS record is in the zone above
// its name (RFC 4035, section 3.1.4.1): only if that is not served, the zone with that name answers.
func (s *Server) zone(name string, qtype uint16) *Zone {
	zones := s.zones.Load().by
	for off, end := 0, false; !end; off, end = dns.NextLabel(name, off) {
		if z, ok := zones[name[off:]]; ok && (off > 0 || qtype != dns.TypeDS) {
			return z
		}
	}
	return cmp.Or(zones["."], zones[name])
}

// ServeDNS implements plugin.Handler. This plugin is the last of its plugin chain, so it calls no other.
func (s *Server) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	sender := fairshare.Client(w.RemoteAddr())
	q := r.Question[0]
	state := request.Request{W: w, Req: r}
	o := s.options.Load()
	if state.Proto() == "udp" {
		switch o.limit.over(sender) {
		case none:
			s.counts.limited.Inc()
			return dns.RcodeSuccess, nil // by CoreDNS's convention, success means that nothing is left to write
		case short:
			s.counts.slipped.Inc()
			m := new(dns.Msg).SetReply(r)
			m.Truncated = true
			return write(w, m)
		}
	}
	name := state.Name()
	z := s.zone(name, q.Qtype)
	switch {
	case z == nil:
		s.counts.refused.Inc()
		return dns.RcodeRefused, nil
	case r.Opcode == dns.OpcodeNotify:
		return s.notified(w, r, z, sender)
	case q.Qtype == dns.TypeAXFR, q.Qtype == dns.TypeIXFR:
		s.counts.refused.Inc()
		return dns.RcodeRefused, nil
	}
	c, bad := clientOf(sender, r, o.Resolvers)
	if bad {
		s.counts.refused.Inc()
		return dns.RcodeFormatError, nil
	}
	m := new(dns.Msg).SetReply(r)
	m.Authoritative, m.RecursionAvailable, m.Compress = true, false, true
	if f, ok := family(q.Qtype); ok {
		if h := z.hosts[name]; h != nil {
			if answers, bits := s.choose(h, f, c); len(answers) > 0 {
				m.Answer = answers
				rename(m.Answer, name, q.Name)
				return s.say(w, m, c, bits)
			}
		}
	}
	return s.say(w, m, c, s.plain(m, z, state, c))
}

// choose returns a host's answer for one address family: the addresses or the CNAME of the chosen cluster; empty if no cluster has either.
// bits is the scope for the EDNS client subnet option.
func (s *Server) choose(h *host, family int, c client) (answers []dns.RR, bits int) {
	i, bits, draw := s.pick(h, family, c.address)
	if i < 0 {
		return nil, bits
	}
	if alias := h.answers[i].alias; alias != nil {
		return []dns.RR{alias}, bits
	}
	for _, a := range h.addresses(nil, i, family, draw) {
		answers = append(answers, a.rr)
	}
	return answers, bits
}

// pick chooses one of a host's clusters for the client with the address from, and counts the reason of the choice. It returns the cluster's
// index i, or -1 if no cluster has an address of the family or a CNAME; the scope for the client subnet option; and the random number draw,
// which the caller uses to choose the first address of the answer.
func (s *Server) pick(h *host, family int, from netip.Addr) (i, bits int, draw uint64) {
	draw = s.draw()
	if h.simple {
		if i, _ = h.choose(family, nil, draw); i >= 0 {
			s.counts.simple.Inc()
		}
		return i, 0, draw
	}
	place, bits := s.locator.Load().Locate(from)
	i, why := h.choose(family, place, draw)
	if i >= 0 {
		s.counts.chosen[why].Inc()
	}
	return i, bits, draw
}

// plain fills in the answer of a plain server. If a CNAME or a wildcard leads to a host, it chooses among that host's clusters.
func (s *Server) plain(m *dns.Msg, z *Zone, state request.Request, c client) (bits int) {
	name, qtype := state.Name(), state.QType()
	if qtype == dns.TypeANY {
		// RFC 8482, section 4.2: the answer to ANY is small, so that an attacker who forges source addresses gains little.
		if f := z.lookup(name, dns.TypeHINFO); f.result == file.NameError || f.result == file.Delegation {
			return fill(m, f)
		}
		header := dns.RR_Header{Name: state.QName(), Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: 3600}
		m.Answer = []dns.RR{&dns.HINFO{Hdr: header, Cpu: "RFC8482"}}
		return 0
	}
	f := z.find(state, name)
	s.counts.plain.Inc()
	i, ok := family(qtype)
	if !ok || f.result == file.Delegation || f.result == file.ServerFailure {
		return fill(m, f)
	}
	// The answer has the CNAMEs in order. Find the name to which the last one leads.
	end, aliases := name, 0
	for _, rr := range f.answer {
		if alias, ok := rr.(*dns.CNAME); ok && aliases < len(f.answer) {
			end, aliases = dns.CanonicalName(alias.Target), aliases+1
		}
	}
	h := z.hosts[end]
	if h == nil {
		h = z.wildcard(end)
	}
	if h == nil {
		return fill(m, f)
	}
	answers, bits := s.choose(h, i, c)
	if len(answers) == 0 {
		return fill(m, f)
	}
	for n := range answers {
		answers[n] = named(answers[n], end)
	}
	kept := slices.DeleteFunc(slices.Clone(f.answer), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeCNAME && !isDNAME(rr) })
	m.Answer = slices.Concat(kept, answers)
	return bits
}

// fill copies a plain server's answer into m. It returns 0, because such an answer does not depend on the client.
func fill(m *dns.Msg, f found) (bits int) {
	m.Answer, m.Ns, m.Extra = f.answer, f.ns, slices.Clone(f.extra)
	switch f.result {
	case file.NameError:
		m.Rcode = dns.RcodeNameError
	case file.Delegation:
		m.Authoritative = len(f.answer) > 0
	case file.ServerFailure:
		m.Rcode = dns.RcodeServerFailure
	}
	return 0
}

// wildcard returns the host that answers for a name that does not exist: the wildcard directly below the closest name above it that does
// exist (RFC 4592). It returns nil if that wildcard is no host, or if the name exists.
func (z *Zone) wildcard(name string) *host {
	for off, end := 0, false; !end && !z.exists(name[off:]); {
		off, end = dns.NextLabel(name, off)
		if end {
			break
		}
		star := "*." + name[off:]
		if h := z.hosts[star]; h != nil || z.exists(star) { // hosts first: one with only hostnames has no records at its own name
			return h
		}
	}
	return nil
}

// exists reports whether the zone has records at a name or below it.
func (z *Zone) exists(name string) bool {
	if _, ok := z.plain.Search(name); ok || name == z.origin {
		return true
	}
	next, ok := z.plain.Next(name)
	return ok && dns.IsSubDomain(name, next.Name())
}

// rename changes the name of records to its spelling in the query, if they differ in upper and lower case.
func rename(rrs []dns.RR, name, asked string) {
	if name == asked {
		return
	}
	for i := range rrs {
		rrs[i] = named(rrs[i], asked)
	}
}

// notified handles a NOTIFY. It answers REFUSED if the queried name is not that of the zone z, or if Options.Notified does not accept the
// sender.
func (s *Server) notified(w dns.ResponseWriter, r *dns.Msg, z *Zone, sender netip.Addr) (int, error) {
	notify := s.options.Load().Notified
	if !strings.EqualFold(r.Question[0].Name, z.origin) || notify == nil || !notify(z.origin, sender) {
		s.counts.refused.Inc()
		return dns.RcodeRefused, nil
	}
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	return write(w, m)
}

// say writes the answer m, with the client subnet option if the query had one that counts. bits is the number of bits of the client's
// address on which the answer depends.
func (s *Server) say(w dns.ResponseWriter, m *dns.Msg, c client, bits int) (int, error) {
	if c.subnet != nil {
		opt := new(dns.OPT)
		opt.Hdr.Name, opt.Hdr.Rrtype = ".", dns.TypeOPT
		opt.Option = []dns.EDNS0{c.option(bits)}
		m.Extra = append(m.Extra, opt)
	}
	return write(w, m)
}

func write(w dns.ResponseWriter, m *dns.Msg) (int, error) {
	if err := w.WriteMsg(m); err != nil {
		// The code for success keeps CoreDNS from writing a second answer.
		return dns.RcodeSuccess, plugin.Error(Name, err)
	}
	return dns.RcodeSuccess, nil
}

// reasons is the number of loadbalance's reasons.
const reasons = int(loadbalance.Unhealthy) + 1
