package authoritative

import (
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// client is the client for whom an answer is chosen.
type client struct {
	address netip.Addr        // used to locate the client
	subnet  *dns.EDNS0_SUBNET // the query's option, if its sender is a listed resolver; nil: none, or none that counts
}

// clientOf returns the client of a query: the network in its EDNS client subnet option, if it names one and the sender is one of the
// resolvers, else the sender itself. bad reports a malformed or second option; the answer to it is FORMERR (RFC 7871, section 7.2.1). The
// options of all other senders are ignored, because with them any client could choose its location.
func clientOf(sender netip.Addr, r *dns.Msg, resolvers []netip.Prefix) (c client, bad bool) {
	c.address = sender
	opt := r.IsEdns0()
	if opt == nil || len(opt.Option) == 0 || !listed(resolvers, sender) {
		return c, false
	}
	for _, o := range opt.Option {
		s, ok := o.(*dns.EDNS0_SUBNET)
		if !ok {
			continue
		}
		if c.subnet != nil {
			return c, true
		}
		c.subnet = s
	}
	if c.subnet == nil {
		return c, false
	}
	s := c.subnet
	a, ok := netip.AddrFromSlice(s.Address)
	if s.Family == 1 {
		a = a.Unmap() // the library uses 16 bytes
	}
	if s.SourceScope != 0 {
		return c, true
	}
	switch s.Family {
	case 0:
		// Family 0 has no address: the client wants its network to stay unknown (RFC 7871, section 7.1.2).
		return c, s.SourceNetmask != 0 || len(s.Address) != 0 && !s.Address.IsUnspecified()
	case 1, 2:
	default:
		return client{address: sender}, false // an unknown family: ignore the option
	}
	if !ok || a.Is4In6() || a.Is4() != (s.Family == 1) || int(s.SourceNetmask) > a.BitLen() {
		return c, true
	}
	if network, err := a.Prefix(int(s.SourceNetmask)); err != nil || network.Addr() != a {
		return c, true // bits are set beyond the prefix length
	}
	if s.SourceNetmask > 0 {
		c.address = a
	}
	return c, false
}

// listed reports whether the sender is one of the resolvers whose EDNS client subnet option is used.
func listed(resolvers []netip.Prefix, sender netip.Addr) bool {
	return slices.ContainsFunc(resolvers, func(p netip.Prefix) bool { return p.Contains(sender) })
}

// option returns the EDNS client subnet option of an answer. bits is the number of bits of the client's address on which the answer
// depends. If the query's option has no address, the scope is 0: the answer is valid for all such clients.
func (c client) option(bits int) *dns.EDNS0_SUBNET {
	s := c.subnet
	out := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: s.Family, SourceNetmask: s.SourceNetmask, Address: slices.Clone(s.Address)}
	if s.SourceNetmask > 0 {
		out.SourceScope = uint8(bits)
	}
	if out.Address == nil {
		out.Address = net.IP{}
	}
	return out
}
