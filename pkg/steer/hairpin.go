package steer

import "net/netip"

// HairpinOut and HairpinIn are the ends of the hairpin, a veth pair with both ends in the host's netns. With the iptables back
// end, a packet for kube-dns leaves by HairpinOut and comes in again by HairpinIn, so that it passes the nat table a second
// time, and kube-proxy translates its cluster DNS address (D-022). Package iptables makes the pair and its rules.
const (
	HairpinOut = "neardns-turn0"
	HairpinIn  = "neardns-turn1"
)

// OwnMark is the packet mark that routes queries of the node's own processes into the hairpin when they are to go to kube-dns
// (see Host.OwnLocals). It is cleared when the packet comes in by HairpinIn. It has none of the bits that kube-proxy (0x4000,
// 0x8000), Calico (0xffff0000) and the CNI of AWS (0x80) use by default.
const OwnMark = 0x35

// AnswerMark is the mark that routes kube-dns's answers back into the hairpin through which the query came, although their
// destination is a pod. Connection tracking stores the mark, and an answer has it from its arrival until it comes out of the
// hairpin. To set or clear it, rules change only the bits in MarkMask, which the programs named above do not use either.
const (
	AnswerMark = 0x36
	MarkMask   = 0x3f
)

// HairpinSource is the source address that queries of the node's own processes get in the hairpin, so that their answers return
// to it.
func HairpinSource(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 249})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 15: 0xf9})
}

// HairpinSources is the range of source addresses, first and last, for queries that leave the hairpin to a kube-dns pod on a bridge.
// With its own address, a client on that bridge would get the answer directly, not through the hairpin. Each client always gets the
// same one.
func HairpinSources(is4 bool) (first, last netip.Addr) {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 192}), netip.AddrFrom4([4]byte{169, 254, 20, 247})
	}
	prefix := [16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 13: 1}
	end := prefix
	end[14], end[15] = 0xff, 0xff
	return netip.AddrFrom16(prefix), netip.AddrFrom16(end)
}

// HairpinAddress is the address of HairpinIn, for IPv4 alone. If a link has no address, even a loose reverse path filter drops
// packets whose source is not routed by that link (net/ipv4/fib_frontend.c, no_addr).
func HairpinAddress() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 248}) }

func isHairpinSource(a netip.Addr) bool {
	first, last := HairpinSources(a.Is4())
	return a == HairpinSource(a.Is4()) || a == HairpinAddress() || a.Compare(first) >= 0 && a.Compare(last) <= 0
}

// LeasePorts returns the destination ports of the datagrams that renew and withdraw a lease for p. The rules of both back ends
// match them.
func LeasePorts(p Protocol) (renew, withdraw int) {
	if p == TCP {
		return PortRenewTCP, PortWithdrawTCP
	}
	return PortRenewUDP, PortWithdrawUDP
}
