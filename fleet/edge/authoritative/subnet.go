package authoritative

import (
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// client is who an answer is for.
type client struct {
	address netip.Addr        // by which the place is found
	subnet  *dns.EDNS0_SUBNET // the question's, where it counts; nil: the address is the sender's
}

// clientOf reads a question's client: the network in its EDNS client subnet where a listed resolver sends it, else the sender. bad says
// that the option is malformed, which is answered FORMERR (RFC 7871, section 7.1.2). An option of anybody else is passed over, and the
// answer has none: it would let everybody choose his place, and fill resolvers' caches.
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
		a = a.Unmap() // the library keeps it in 16 bytes
	}
	if s.SourceScope != 0 {
		return c, true
	}
	switch s.Family {
	case 0:
		// Of family 0 there is the empty network alone: the client wants none to be told (section 7.1.2).
		return c, s.SourceNetmask != 0 || len(s.Address) != 0 && !s.Address.IsUnspecified()
	case 1, 2:
	default:
		return client{address: sender}, false // a family that is not known here: as if it were not there
	}
	if !ok || a.Is4In6() || a.Is4() != (s.Family == 1) || int(s.SourceNetmask) > a.BitLen() {
		return c, true
	}
	if network, err := a.Prefix(int(s.SourceNetmask)); err != nil || network.Addr() != a {
		return c, true // bits behind the network's
	}
	if s.SourceNetmask > 0 {
		c.address = a
	}
	return c, false
}

// listed reports whether a sender's client subnets count.
func listed(resolvers []netip.Prefix, sender netip.Addr) bool {
	return slices.ContainsFunc(resolvers, func(p netip.Prefix) bool { return p.Contains(sender) })
}

// option is the answer's, of an answer that bits of the client's address decided. Where the client gave none of its address the answer
// is for whoever asks the same way: scope 0.
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
