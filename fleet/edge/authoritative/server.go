// Package authoritative is the CoreDNS plugin that answers zones that clusters share: for each of their hosts it chooses a cluster by geo, health
// and weight, and answers with that cluster's addresses. All else of a zone it answers as a plain authoritative server does.
//
// It owns no zone: whoever reads them sets them. It must never ask anybody, recurse, or answer with an address that the zone does not
// hold for the host.
//
// Failure policy: an answer is a non-empty part of what a plain server says, so that edges and plain servers may serve one zone side by
// side. Health and geo only narrow it down. A zone that is set is answered until another takes its place, however old.
package authoritative

import (
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

// Options say whom the edge serves, and how. Their lists stay as they are.
type Options struct {
	Rate      Rate
	Resolvers []netip.Prefix // whose EDNS client subnet counts
	// Notified is told that a zone's primary has something new. It must not wait.
	Notified func(zone string, sender netip.Addr) (taken bool)
}

// Server is what all of the plugin's instances share. Its methods are safe for concurrent use.
type Server struct {
	options atomic.Pointer[options]
	locator atomic.Pointer[geo.Locator]
	zones   atomic.Pointer[zones]
	counts  *counts
	draw    func() uint64 // uniform over all of its values

	mu sync.Mutex // guards changes of zones
}

// zones are the zones that are answered. Nobody changes them.
type zones struct {
	by    map[string]*Zone      // by origin
	plain fastpath.Zones[*Zone] // the same, for plain questions
}

// New makes a server without zones, that knows no place.
func New(o Options) *Server {
	s := &Server{counts: newCounts(), draw: rand.Uint64} //nolint:gosec // nobody gains by guessing it
	s.Configure(o)
	s.SetLocator(new(geo.Locator))
	s.zones.Store(new(zones))
	return s
}

// options are what Configure said, and the limiter by them.
type options struct {
	Options
	limit *limiter
}

// Configure has the next question answered by other options. Where the rate stays, networks stay as far ahead as they are.
func (s *Server) Configure(o Options) {
	next := &options{Options: o}
	if old := s.options.Load(); old != nil && old.Rate.same(o.Rate) {
		next.limit = old.limit
	} else {
		next.limit = newLimiter(o.Rate)
	}
	s.options.Store(next)
}

// SetLocator says where clients are from now on. The server owns it.
func (s *Server) SetLocator(l *geo.Locator) { s.locator.Store(l) }

// Taker returns what has a zone answered by records that it is given, in place of those before; it keeps them. An error says what is
// wrong with them, and changes nothing. It is called by one goroutine at a time.
func (s *Server) Taker(origin string, watch Watch) func(records []dns.RR) error {
	beats := new(heartbeats)
	return func(records []dns.RR) error {
		z, err := compile(origin, records, watch, beats)
		if err == nil {
			err = s.set(z)
		}
		return err
	}
}

// Current notes that the primary has just said that a zone is as it is answered, and returns the clusters whose heartbeats have not changed for
// long. Their addresses are answered no more if no health check finds them well, unless there are no others.
func (s *Server) Current(origin string) (silent []string) {
	if z := s.zones.Load().by[origin]; z != nil {
		silent = z.heartbeats.observe(z.beats, time.Now())
	}
	return silent
}

// set has a zone answered.
func (s *Server) set(z *Zone) error {
	return s.change(func(by map[string]*Zone) { by[z.origin] = z })
}

// Drop has a zone answered no more.
func (s *Server) Drop(origin string) {
	_ = s.change(func(by map[string]*Zone) { delete(by, origin) }) // the names of those that stay were taken before
}

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

// Setup is the directive's set-up function.
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

// zone finds the zone that a canonical name is in; nil for none.
func (s *Server) zone(name string) *Zone {
	zones := s.zones.Load().by
	for off, end := 0, false; !end; off, end = dns.NextLabel(name, off) {
		if z := zones[name[off:]]; z != nil {
			return z
		}
	}
	return zones["."]
}

// ServeDNS implements plugin.Handler. The plugin is the end of its chain.
func (s *Server) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	sender := fairshare.Client(w.RemoteAddr())
	q := r.Question[0]
	state := request.Request{W: w, Req: r}
	o := s.options.Load()
	if state.Proto() == "udp" {
		switch o.limit.over(sender) {
		case none:
			s.counts.limited.Inc()
			return dns.RcodeSuccess, nil // written: there is nothing more to say
		case short:
			s.counts.slipped.Inc()
			m := new(dns.Msg).SetReply(r)
			m.Truncated = true
			return write(w, m)
		}
	}
	name := state.Name()
	z := s.zone(name)
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

// choose answers for a host; without a record where nobody has what is asked for. bits is the answer's scope.
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

// pick picks a host's cluster for a client's address, and counts why; -1 where nobody has what is asked for. draw is where an answer
// begins.
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

// plain answers as a plain server does, and at the end of an alias or behind a wildcard for the host that is there.
func (s *Server) plain(m *dns.Msg, z *Zone, state request.Request, c client) (bits int) {
	name, qtype := state.Name(), state.QType()
	if qtype == dns.TypeANY {
		// RFC 8482, section 4.2: little to gain for whoever writes another's address as the sender's.
		if f := z.lookup(name, dns.TypeHINFO); f.result == file.NameError || f.result == file.Delegation {
			return fill(m, f)
		}
		m.Answer = []dns.RR{&dns.HINFO{Hdr: dns.RR_Header{Name: state.QName(), Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: 3600}, Cpu: "RFC8482"}}
		return 0
	}
	f := z.find(state, name)
	s.counts.plain.Inc()
	i, ok := family(qtype)
	if !ok || f.result == file.Delegation || f.result == file.ServerFailure {
		return fill(m, f)
	}
	// The aliases stand first, each with its target behind it.
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

// fill takes over what a plain server says.
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

// wildcard finds the host that a name which is no name of the zone is answered by: that of its closest encloser (RFC 4592).
func (z *Zone) wildcard(name string) *host {
	for off, end := 0, false; !end && !z.exists(name[off:]); {
		off, end = dns.NextLabel(name, off)
		if end {
			break
		}
		star := "*." + name[off:]
		if h := z.hosts[star]; h != nil || z.exists(star) { // of hostnames alone, a host has no records at its name
			return h
		}
	}
	return nil
}

// exists reports whether a name has records, or names below it do.
func (z *Zone) exists(name string) bool {
	if _, ok := z.plain.Search(name); ok || name == z.origin {
		return true
	}
	next, ok := z.plain.Next(name)
	return ok && dns.IsSubDomain(name, next.Name())
}

// rename gives records the name as it was asked for, where its letters differ.
func rename(rrs []dns.RR, name, asked string) {
	if name == asked {
		return
	}
	for i := range rrs {
		rrs[i] = named(rrs[i], asked)
	}
}

// notified passes on what a primary says.
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

// say writes an answer that so many bits of the client's address decided.
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
		// The client is gone or its buffer full; CoreDNS must not write a second time, so the code says "written".
		return dns.RcodeSuccess, plugin.Error(Name, err)
	}
	return dns.RcodeSuccess, nil
}

// reasons is how many of them there are.
const reasons = int(loadbalance.Unhealthy) + 1
