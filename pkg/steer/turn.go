package steer

import "net/netip"

// The turn is a veth pair with both ends in the host's netns. The iptables back end sends what it gives back out by one end,
// so that it comes in by the other and passes nat a second time, where kube-proxy translates the cluster DNS address
// (ARCHITECTURE.md, D-022). turn makes it, iptables has the rules for it.
const (
	TurnOut = "neardns-turn0"
	TurnIn  = "neardns-turn1"
)

// OwnMark is the packet mark by which questions of the node's own processes find into the turn, where those get a fallback
// (Host.OwnLocals). The turn's other end takes it off. It has none of the bits that kube-proxy (0x4000, 0x8000), Calico
// (0xffff0000), Cilium (0xff00) and the CNI of AWS (0x80) look at.
const OwnMark = 0x35

// TurnSource is the source of what has taken the turn: the answers find back by it.
func TurnSource(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{169, 254, 20, 249})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x90, 3: 0xde, 4: 0x0d, 5: 0x95, 15: 0xf9})
}

// LeasePorts are the ports of the datagrams that renew and withdraw a lease; each back end's rules take them.
func LeasePorts(p Protocol) (renew, withdraw int) {
	if p == TCP {
		return portRenewTCP, portWithdrawTCP
	}
	return portRenewUDP, portWithdrawUDP
}
