package steer

import "net/netip"

// The hairpin is a veth pair with both ends in the host's netns. The iptables back end sends packets that fall back out by one
// end; they come in by the other and pass nat a second time, where kube-proxy translates the cluster DNS address
// (ARCHITECTURE.md, D-022). Package iptables makes it and has its rules.
const (
	HairpinOut = "neardns-turn0"
	HairpinIn  = "neardns-turn1"
)

// OwnMark is the packet mark that routes queries of the node's own processes into the hairpin if those have a fallback
// (Host.OwnLocals). The hairpin's other end clears it. It has none of the bits that kube-proxy (0x4000, 0x8000), Calico
// (0xffff0000), Cilium (0xff00) and the CNI of AWS (0x80) use.
const OwnMark = 0x35

// AnswerMark is the mark that routes answers to pods' queries back into the hairpin they came through, although they are
// addressed to a pod. Connection tracking stores it, and an answer has it from its arrival until it is in the hairpin. Bits of
// both marks that other programs use are kept.
const (
	AnswerMark = 0x36
	MarkMask   = 0x3f
)

// HairpinSource is the source address of the node's own queries in the hairpin, so that answers return to it.
func HairpinSource(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 249})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 15: 0xf9})
}

// HairpinSources is the range of source addresses, first to last, for packets that leave the hairpin to a bridge: each pod
// keeps one.
func HairpinSources(is4 bool) (first, last netip.Addr) {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 192}), netip.AddrFrom4([4]byte{169, 254, 20, 247})
	}
	prefix := [16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 13: 1}
	end := prefix
	end[14], end[15] = 0xff, 0xff
	return netip.AddrFrom16(prefix), netip.AddrFrom16(end)
}

// HairpinAddress is the address of the second end. There is only an IPv4 one: a loose reverse path filter drops everything that
// arrives on a link without addresses (net/ipv4/fib_frontend.c, no_addr).
func HairpinAddress() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 248}) }

func isHairpinSource(a netip.Addr) bool {
	first, last := HairpinSources(a.Is4())
	return a == HairpinSource(a.Is4()) || a == HairpinAddress() || a.Compare(first) >= 0 && a.Compare(last) <= 0
}

// LeasePorts are the ports of the datagrams that renew and withdraw a lease, which each back end's rules match.
func LeasePorts(p Protocol) (renew, withdraw int) {
	if p == TCP {
		return PortRenewTCP, PortWithdrawTCP
	}
	return PortRenewUDP, PortWithdrawUDP
}
