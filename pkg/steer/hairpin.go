package steer

import "net/netip"

// The hairpin is a veth pair with both ends in the host's netns. The iptables back end sends what it gives back out by one end,
// so that it comes in by the other and passes nat a second time, where kube-proxy translates the cluster DNS address
// (ARCHITECTURE.md, D-022). The package iptables makes it and has the rules for it.
const (
	HairpinOut = "neardns-turn0"
	HairpinIn  = "neardns-turn1"
)

// OwnMark is the packet mark by which questions of the node's own processes find into the hairpin, where those get a fallback
// (Host.OwnLocals). The hairpin's other end takes it off. It has none of the bits that kube-proxy (0x4000, 0x8000), Calico
// (0xffff0000), Cilium (0xff00) and the CNI of AWS (0x80) look at.
const OwnMark = 0x35

// AnswerMark is the mark by which answers to what pods asked by the hairpin find back into it, since they are for a pod and not
// for the hairpin: connection tracking remembers it, and the packet bears it from where it comes in to the hairpin's other end.
// Others' bits of both marks are kept.
const (
	AnswerMark = 0x36
	MarkMask   = 0x3f
)

// HairpinSource is the source of what the node's own processes send by the hairpin: the answers find back by it.
func HairpinSource(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 249})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 15: 0xf9})
}

// HairpinSources is a range of sources, from first to last, for what leaves the hairpin to a bridge: each pod keeps one.
func HairpinSources(is4 bool) (first, last netip.Addr) {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 192}), netip.AddrFrom4([4]byte{169, 254, 20, 247})
	}
	prefix := [16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 13: 1}
	end := prefix
	end[14], end[15] = 0xff, 0xff
	return netip.AddrFrom16(prefix), netip.AddrFrom16(end)
}

// HairpinAddress is the second end's own, IPv4 alone: a loose reverse path filter drops all that comes by a link without addresses
// (net/ipv4/fib_frontend.c, no_addr).
func HairpinAddress() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 248}) }

func isHairpinSource(a netip.Addr) bool {
	first, last := HairpinSources(a.Is4())
	return a == HairpinSource(a.Is4()) || a == HairpinAddress() || a.Compare(first) >= 0 && a.Compare(last) <= 0
}

// LeasePorts are the ports of the datagrams that renew and withdraw a lease; each back end's rules take them.
func LeasePorts(p Protocol) (renew, withdraw int) {
	if p == TCP {
		return PortRenewTCP, PortWithdrawTCP
	}
	return PortRenewUDP, PortWithdrawUDP
}
