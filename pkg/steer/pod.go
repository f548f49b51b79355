package steer

import (
	"math"

	"golang.org/x/sys/unix"
)

// Priorities of the base chains. raw (-300) is before conntrack, so the rewrites are stateless and what conntrack sees,
// where something enabled it, are the final addresses. 300 is after every nat chain, so that a mesh that captures DNS in
// the pod's "nat OUTPUT" wins, and traffic forwarded inside the pod (nested containers, VMs) is covered too.
const (
	prioRaw = -300
	// prioBeforeRaw is the host's: one step before iptables' raw table. A NodeLocal DNSCache leaves NOTRACK rules there for its
	// addresses when it is killed; they must find the address that the fallback has written already, or kube-proxy would
	// never see the packet.
	prioBeforeRaw = prioRaw - 1
	prioSrcNAT    = 100
	prioLast      = 300
	// prioVeryLast is behind every filter that may stand in the host's input hook.
	prioVeryLast = math.MaxInt32
)

// render makes the pod table: two chains, four rules a redirect.
func (p Pod) render() table {
	post := chain{name: "postrouting", hook: &hook{kind: "filter", num: unix.NF_INET_POST_ROUTING, priority: prioLast}}
	pre := chain{name: "prerouting", hook: &hook{kind: "filter", num: unix.NF_INET_PRE_ROUTING, priority: prioRaw}}
	for _, r := range p.Redirects {
		f := familyOf(r.Is4())
		for _, proto := range []Protocol{UDP, TCP} {
			post.rules = append(post.rules, f.rule().daddr(r.ClusterDNS).dport(proto, 53).setDaddr(r.Steering).end())
			// No port here: the later fragments of a large answer have none, and without conntrack in the pod nothing
			// reassembles them before this chain.
			pre.rules = append(pre.rules, f.rule().saddr(r.Steering).proto(proto).setSaddr(r.ClusterDNS).end())
		}
	}
	return table{chains: []chain{post, pre}}
}

func familyOf(is4 bool) *family {
	if is4 {
		return families()[0]
	}
	return families()[1]
}
