package authoritative

import (
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// client is the client for which an answer is chosen.
type client struct {
	address netip.Addr        // used to locate the client
	subnet  *dns.EDNS0_SUBNET // from the query, if it is used; nil: address is the sender's
}

// clientOf returns a query's client: the network in its EDNS client subnet if a listed resolver sends it, otherwise the sender. bad means
// that the option is malformed, which is answered FORMERR (RFC 7871, section 7.1.2). The option of any other sender is ignored, and the
// answer has none. Otherwise every sender could choose its location and fill the caches of resolvers.
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
		// Family 0 has only the empty network: the client does not want to disclose its network (section 7.1.2).
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

// listed reports whether client subnets from this sender are used.
func listed(resolvers []netip.Prefix, sender netip.Addr) bool {
	return slices.ContainsFunc(resolvers, func(p netip.Prefix) bool { return p.Contains(sender) })
}

// option returns the option for an answer that bits of the client's address determined. If the client disclosed no address, the answer
// has scope 0: it is valid for every client that does the same.
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
