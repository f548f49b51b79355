package nft

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// Priorities of the base chains. In a pod, raw (-300) is before conntrack, so the rewrites need no connection entry, and if
// anything has enabled conntrack, it sees the cluster DNS address in both directions. 300 is after every nat chain, so that a
// service mesh that captures DNS in the pod's "nat OUTPUT" takes precedence. It also covers traffic that is forwarded inside the
// pod (nested containers, VMs).
const (
	prioRaw = -300
	// prioBeforeRaw is the priority in the host's netns, just before iptables' raw table. A NodeLocal DNSCache that was killed
	// leaves NOTRACK rules for its addresses in raw. Those must see the address that neardns's fallback has already written;
	// otherwise kube-proxy's nat rules would never see the packet.
	prioBeforeRaw = prioRaw - 1
	prioSrcNAT    = 100
	prioLast      = 300
	// prioVeryLast is after all filters in the host's input hook.
	prioVeryLast = math.MaxInt32
)

// Unless steer.Pod.Always is set, the pod table bypasses the agent by itself, so that no neardns process has to run for this. If
// the queries over one IP family and protocol get no answer for podTrust, later ones keep their cluster DNS address, as in a pod
// that is not steered (see group). It does not matter whether the queries or the answers were lost, nor what lost them: for
// example a program at the pod's link, an eBPF policy, missing host rules, or a broken fallback.
const (
	// podTrust is how long a pod waits for an answer before its later queries bypass the agent. Resolvers repeat a query after
	// 5 s (resolv.conf(5)) or 2.5 s (musl), and TCP sends its third SYN after 3 s, so the repetition is answered. The agent
	// answers sooner, except for names whose servers are slow: then another query of the pod may go to kube-dns.
	podTrust = 2 * time.Second
	// podHold is how long a pod bypasses the agent. An answer from the steering address, for example to the agent's pod trial, ends
	// that earlier. Afterwards, the queries of the next podTrust try the agent again.
	podHold = 10 * time.Minute
	// podConn is how long after its last outgoing packet a TCP connection to kube-dns is remembered.
	podConn = 20 * time.Second
	// podSweep is how often the kernel frees expired set elements. Elements stop matching when they expire. The kernel's
	// default of a second would wake a worker each second for each set of each pod.
	podSweep = 10 * time.Second
	// podWays and podConns are the sizes of the pod table's sets. A group has four keys: two IP families, two protocols. podWays
	// is more than the expired elements that they can leave behind between two sweeps. podConns is what a pod that uses only TCP
	// opens during podConn and podSweep at 17 connections a second. If a set is full, queries are steered: if a SYN went to
	// kube-dns unrecorded, its connection's later packets would be steered, and a connection must not change its server.
	podWays, podConns = 128, 512
)

// renderPod returns the pod table for a description. Each expression costs time in an ADD, so both IP families of a group share
// sets and chains, and a match that all rules of a chain need is made once, before the jump to it.
func renderPod(p steer.Pod) table {
	post := chain{name: "postrouting", hook: &hook{kind: "filter", num: unix.NF_INET_POST_ROUTING, priority: prioLast}}
	pre := chain{name: "prerouting", hook: &hook{kind: "filter", num: unix.NF_INET_PRE_ROUTING, priority: prioRaw}}
	if p.Always {
		for _, r := range p.Redirects {
			f := familyOf(r.Is4())
			for _, proto := range []steer.Protocol{steer.UDP, steer.TCP} {
				post.rules = append(post.rules, f.rule().daddr(r.ClusterDNS).dport(proto, 53).setDaddr(r.Steering).end())
				pre.rules = append(pre.rules, f.rule().saddr(r.Steering).proto(proto).setSaddr(r.ClusterDNS).end())
			}
		}
		return table{chains: []chain{post, pre}}
	}
	var out table
	for _, g := range groupsOf(p) {
		steered := chain{name: g.name("steer")}
		for _, r := range g.redirects {
			f := familyOf(r.Is4())
			post.rules = append(post.rules, f.rule().daddr(r.ClusterDNS).anyDport(53).goTo(g.name("dns")))
			steered.rules = append(steered.rules, f.rule().daddr(r.ClusterDNS).setDaddr(r.Steering).end())
			pre.rules = append(pre.rules,
				// Do not match the port: later fragments of a large answer have none, and without conntrack in the pod they are
				// not reassembled before this chain.
				f.rule().saddr(r.Steering).notICMP().setSaddr(r.ClusterDNS).goTo(g.name("answered")),
				// kube-dns's own answer also keeps the path trusted: the host's rules may have sent a steered query there. It does
				// not restore trust, because queries of a path without trust are not steered.
				f.rule().saddr(r.ClusterDNS).anySport(53).in(wayKey, g.name("trusted")).goTo(g.name("answered")))
		}
		chains := g.chains()
		if p.Leaving {
			for i := range chains {
				if chains[i].name == g.name("ask") {
					chains[i].rules = []rule{anyFamily().goTo(g.name("direct"))}
				}
			}
		}
		out.sets = append(out.sets, g.sets(p.Open)...)
		out.chains = append(out.chains, append(chains, steered)...)
	}
	out.chains = append([]chain{post, pre}, out.chains...)
	return out
}

// renderNote returns a pod table that does not steer yet: each packet of a TCP connection records that the connection is to stay on
// kube-dns. It covers connections that the pod opens after the agent has listed the open ones and before the steering rules exist. If
// the set direct is full, a connection goes to kube-dns unrecorded: one whose SYN were steered would be split, because it is not known
// here of later packets where their SYN went.
func renderNote(p steer.Pod) table {
	out := renderPod(p)
	for _, g := range groupsOf(p) {
		for i := range out.chains {
			if out.chains[i].name == g.name("dns") {
				out.chains[i].rules = []rule{anyFamily().update(tcpPortKey, g.name("direct")).accept()}
			}
		}
	}
	return out
}

// group has the n-th redirect of each IP family, which usually belong to one DNS Service. Its sets record a family and
// protocol: trusted, if an answer came or a first query was sent within podTrust; waiting, if a query has no answer yet.
// Queries over a family and protocol that is waiting and no longer trusted bypass the agent.
type group struct {
	number    int // from 1
	redirects []steer.Redirect
}

func groupsOf(p steer.Pod) []group {
	var out []group
	count := map[bool]int{}
	for _, r := range p.Redirects {
		n := count[r.Is4()]
		count[r.Is4()]++
		if n == len(out) {
			out = append(out, group{number: n + 1})
		}
		out[n].redirects = append(out[n].redirects, r)
	}
	return out
}

func (g group) name(base string) string { return base + strconv.Itoa(g.number) }

func (g group) sets(open []steer.Connection) []set {
	way := []nftables.SetDatatype{nftables.TypeNFProto, nftables.TypeInetProto}
	return []set{
		{name: g.name("trusted"), key: way, contents: dynamic, timeout: podTrust, size: podWays, sweep: podSweep},
		// A redirect that is added again begins without what was recorded before it was removed: only the next trial would end that.
		{name: g.name("waiting"), key: way, contents: dynamic, timeout: podHold, size: podWays, sweep: podSweep, of: g.name("steer")},
		{name: g.name("direct"), key: []nftables.SetDatatype{nftables.TypeNFProto, nftables.TypeInetService}, contents: dynamic,
			timeout: podConn, size: podConns, sweep: podSweep, elements: g.directPorts(open)},
	}
}

// directPorts returns the set elements for TCP connections that stay on kube-dns, by their source ports (see portKey). They
// fill at most half of the set, so that others have space.
func (g group) directPorts(open []steer.Connection) []element {
	var out []element
	for _, c := range open {
		if len(out) < podConns/2 && slices.ContainsFunc(g.redirects, func(r steer.Redirect) bool { return r.ClusterDNS == c.ClusterDNS }) {
			key := make([]byte, 8) // each part of a concatenated key begins at a register of four bytes
			key[0] = familyOf(c.ClusterDNS.Is4()).nfproto
			binary.BigEndian.PutUint16(key[4:], c.Port)
			out = append(out, element{key: key})
		}
	}
	return out
}

func (g group) chains() []chain {
	return []chain{
		// All packets of a connection go where its SYN went. A repeated SYN chooses again, so that one lost SYN does not lose
		// the connection.
		{name: g.name("dns"), rules: []rule{
			anyFamily().proto(steer.UDP).goTo(g.name("ask")),
			anyFamily().syn(false).goTo(g.name("open")),
			anyFamily().remove(tcpPortKey, g.name("direct")).goTo(g.name("ask")),
		}},
		// A source port alone identifies a connection, because this chain is after every NAT in the pod's netns.
		{name: g.name("open"), rules: []rule{
			anyFamily().in(portKey, g.name("direct")).goTo(g.name("direct")),
			anyFamily().goTo(g.name("steer")),
		}},
		{name: g.name("ask"), rules: []rule{
			anyFamily().in(wayKey, g.name("trusted")).goTo(g.name("steer")),
			anyFamily().in(wayKey, g.name("waiting")).goTo(g.name("direct")),
			anyFamily().update(wayKey, g.name("waiting")).update(sameKey(wayKey), g.name("trusted")).goTo(g.name("steer")),
			anyFamily().goTo(g.name("steer")), // reached only if a set is full, because the rule above then ends early
		}},
		{name: g.name("direct"), rules: []rule{
			anyFamily().update(tcpPortKey, g.name("direct")).accept(),
			anyFamily().syn(true).goTo(g.name("steer")), // a SYN gets here only if the set direct is full
		}},
		{name: g.name("answered"), rules: []rule{
			// Over TCP, only a SYN-ACK counts as an answer, not a reset: a host that lost its rules sends a reset.
			anyFamily().notSynAck().ret(),
			anyFamily().update(wayKey, g.name("trusted")).remove(sameKey(wayKey), g.name("waiting")).end(),
		}},
	}
}

func familyOf(is4 bool) *family {
	if is4 {
		return families()[0]
	}
	return families()[1]
}
