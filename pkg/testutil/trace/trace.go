// Package trace has the list of cases (cases.md) that show where a packet goes, for both back ends of pkg/steer. It also has the
// world in which a packet is traced: sockets, routes, connection tracking, kube-proxy and a clock, all of them in memory.
//
// It needs no root and no kernel, except CheckKernel. Each back end's tests have a tracer that knows what the rules mean and implements
// Program. Only tests import the package.
//
// Failure policy: an unknown word in the list, and an expression or option that a tracer does not know, is an error that names it.
package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// Hook is one of netfilter's hooks.
type Hook string

// The five hooks.
const (
	Prerouting  Hook = "prerouting"
	Input       Hook = "input"
	Forward     Hook = "forward"
	Output      Hook = "output"
	Postrouting Hook = "postrouting"
)

// Program is the rules of one netns as a back end renders them.
type Program interface {
	// Keys names each rule: its chain and its text.
	Keys() []string
	// Start gives the rules with empty sets, the clock at zero. Rules of the given key are left out; "" leaves all in.
	Start(without string) Rules
}

// Rules are one netns's rules, with what packets left in their sets.
type Rules interface {
	// Pass takes a packet through all chains at one hook. Where other programs' chains or connection tracking stand among neardns's chains,
	// it calls the methods of w.
	Pass(h Hook, p *Packet, w *World) error
	// Noted returns the names of the evidence sets that have the client c.
	Noted(c steer.Client, w *World) []string
}

// Packet is one packet: what rules can match, and what they and the World made of it.
type Packet struct {
	Src, Dst         netip.Addr
	Protocol         steer.Protocol
	SrcPort, DstPort uint16
	Flags            byte   // the flags of a TCP packet
	Later            bool   // a later fragment, which has no transport header
	In, Out          string // links by which the packet comes and goes; "": not decided yet
	Mark             uint32
	Root             bool         // a process of root sent the packet
	Secret           steer.Secret // the lease secret, after the UDP header or in place of TCP's sequence numbers
	Socket           Socket       // the socket that a look-up by the packet's addresses finds

	Zone       uint16 // of connection tracking, in the original direction
	Conn       *Conn  // nil before connection tracking, and of what is not tracked
	Reply      bool
	New        bool // whether this is the first packet of its connection
	Untracked  bool
	Dropped    bool
	Accepted   bool // by the filter table, so that a policy of DROP does not meet it
	Settled    bool // in the nat table, so that no later rule there sees it
	Translated bool // kube-proxy has translated the destination
	SourceNAT  string
	Counted    []string
}

// TCP flags, RFC 9293 section 3.1.
const (
	FIN byte = 0x01
	SYN byte = 0x02
	RST byte = 0x04
	ACK byte = 0x10
)

// Socket is the socket that the kernel's lookup by a packet's addresses finds.
type Socket struct {
	Owner       string // owner: agent, other or foreign; "" if no socket is bound
	Wildcard    bool   // whether the socket is bound to all addresses
	Transparent bool   // whether the socket has the option IP_TRANSPARENT
	Request     bool   // a half-open connection, which the third packet of a handshake finds
}

// Found reports whether there is a socket at all.
func (s Socket) Found() bool { return s.Owner != "" }

// tuple is the key by which connection tracking finds one direction of a connection.
type tuple struct {
	protocol steer.Protocol
	src, dst netip.AddrPort
}

func (p *Packet) tuple() tuple {
	return tuple{p.Protocol, netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)}
}

// Conn is an entry of connection tracking.
type Conn struct {
	original tuple
	dst      netip.Addr // where the original direction's packets go
	proxied  bool       // whether kube-proxy translates the connection
	Zone     uint16
	Mark     uint32
}

// World is everything around the rules of one netns.
type World struct {
	Now time.Duration
	// Services are the addresses that kube-proxy translates.
	Services []netip.Addr
	// NodeCache are the addresses of the NOTRACK rules that a killed NodeLocal DNSCache left in the raw table.
	NodeCache []netip.Addr

	routes map[netip.Addr]string
	conns  []*Conn
	took   map[string]bool // rules by key; nil: not recorded
}

// Took notes that a packet met all conditions of a rule.
func (w *World) Took(chain, rule string) {
	if w.took != nil {
		w.took[Key(chain, rule)] = true
	}
}

// Key returns the name of a rule: its chain and its text.
func Key(chain, rule string) string { return chain + ": " + rule }

// links are numbered from 1 in this order.
var links = []string{"lo", podLink, otherLink, uplink, steer.ProberInterface, detourLink, steer.HairpinOut, steer.HairpinIn, bridge}

// Index returns a link's interface index, or 0 if there is no such link.
func (w *World) Index(link string) uint32 { return uint32(slices.Index(links, link) + 1) } //nolint:gosec // a handful

// Route returns the link by which the host reaches an address, or "" if the address is the host's.
func (w *World) Route(a netip.Addr) string {
	if link, ok := w.routes[a]; ok {
		return link
	}
	return uplink // the default route
}

// Raw applies node-cache's NOTRACK rules in the raw table, after our chains. They have no effect on a packet that was given a zone, because
// it already has a connection tracking template (net/netfilter/xt_CT.c).
func (w *World) Raw(h Hook, p *Packet) {
	isQuery := p.DstPort == 53 && slices.Contains(w.NodeCache, p.Dst)
	answer := h == Output && p.SrcPort == 53 && slices.Contains(w.NodeCache, p.Src)
	if (h == Prerouting || h == Output) && (isQuery || answer) && !p.Dropped && p.Zone == 0 {
		p.Untracked = true
	}
}

// Track does what connection tracking does with a packet at its priority in a hook.
func (w *World) Track(p *Packet) {
	if p.Untracked || p.Dropped || p.Conn != nil || p.Later {
		return
	}
	for _, c := range w.conns {
		t := p.tuple()
		if c.original == t && c.Zone == p.Zone {
			p.Conn = c
			return
		}
		if c.original.src == t.dst && t.src == netip.AddrPortFrom(c.dst, c.original.dst.Port()) && c.original.protocol == t.protocol {
			p.Conn, p.Reply = c, true
			return
		}
	}
	p.New = true
	p.Conn = &Conn{original: p.tuple(), dst: p.Dst, Zone: p.Zone}
	w.conns = append(w.conns, p.Conn)
}

// Translate does what kube-proxy and the kernel do at the end of a nat hook: kube-proxy translates a new connection that our rules have not
// decided about, and packets of a known connection are changed as its first one was.
func (w *World) Translate(h Hook, p *Packet) {
	switch {
	case p.Conn == nil || p.Dropped:
	case p.Reply:
		if h == Postrouting || h == Input {
			p.Src = p.Conn.original.dst.Addr()
		}
	case h != Prerouting && h != Output:
	case !p.New:
		p.Dst, p.Translated = p.Conn.dst, p.Conn.proxied
	case !p.Settled && p.DstPort == 53 && slices.Contains(w.Services, p.Dst):
		p.Translated, p.Conn.proxied = true, true
	}
}

// DNAT changes the destination of a packet and of its connection.
func (p *Packet) DNAT(to netip.Addr) { p.Dst, p.Conn.dst, p.Settled = to, to, true }

// Count records that the packet incremented a counter.
func (p *Packet) Count(name string) { p.Counted = append(p.Counted, name) }

// SNAT records which of the hairpin's source addresses a connection gets; any other is an error.
func (p *Packet) SNAT(first, last netip.Addr) error {
	from, to := steer.HairpinSources(p.Src.Is4())
	switch {
	case first == steer.HairpinSource(p.Src.Is4()) && last == first:
		p.SourceNAT = "from turn"
	case first == from && last == to:
		p.SourceNAT = "from the turn's range"
	default:
		return fmt.Errorf("no source of ours: %s to %s", first, last)
	}
	p.Settled = true
	return nil
}
