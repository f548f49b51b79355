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

// Priorities of the base chains. raw (-300) is before conntrack, so the rewrites are stateless and conntrack, where something
// enabled it, sees the final addresses. 300 is after every nat chain, so that a mesh that captures DNS in the pod's "nat
// OUTPUT" takes precedence, and traffic forwarded inside the pod (nested containers, VMs) is covered too.
const (
	prioRaw = -300
	// prioBeforeRaw is the host's priority, one step before iptables' raw table. A NodeLocal DNSCache that is killed leaves
	// NOTRACK rules for its addresses there. They must see the address that the fallback has already written, or kube-proxy
	// would never see the packet.
	prioBeforeRaw = prioRaw - 1
	prioSrcNAT    = 100
	prioLast      = 300
	// prioVeryLast is after every filter in the host's input hook.
	prioVeryLast = math.MaxInt32
)

// The pod table bypasses the agent by itself. If a query gets no answer, then later queries, from podTrust on, keep their
// cluster DNS address, as in a pod that is not steered. It does not matter whether the query or its answer was lost, nor where
// (a program at the pod's link, an eBPF policy, a switch that was flushed while no agent runs, a fallback that no longer
// works), and no neardns process needs to be alive to notice.
const (
	// podTrust is how long a pod waits for an answer before its next queries are bypassed. Resolvers repeat a query after 5 s
	// (resolv.conf(5)), musl's after 2.5 s, and TCP its second SYN after 3 s, so the repetition is answered. The agent answers
	// sooner, except for names whose servers are slow: then one of the pod's other queries may go to kube-dns.
	podTrust = 2 * time.Second
	// podHold is how long a pod is bypassed unless an answer from the steering address comes first, for example to the agent's
	// pod trial. After that, one query tries the agent again.
	podHold = 10 * time.Minute
	// podConn is how long a bypassed connection is remembered after its last packet.
	podConn = 20 * time.Second
	// podSweep is how often expired elements are freed; they stop matching when they expire. The kernel's default of a second
	// would wake a worker for each set of each pod.
	podSweep = 10 * time.Second
	// podWays exceeds what the four keys of one group can leave in a set between two sweeps; podConns is what a pod that uses
	// TCP alone opens in podConn at 25 connections per second. If a set is full, further queries go where they would go without
	// evidence: a connection must go one way from its SYN on.
	podWays, podConns = 128, 512
)

// renderPod makes the pod table. Each expression costs time in an ADD, so both families of a group share sets and chains, and a
// match that all rules of a chain need is made once, before the jump to it.
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
				// No port here: the later fragments of a large answer have none, and without conntrack in the pod nothing
				// reassembles them before this chain.
				f.rule().saddr(r.Steering).notICMP().setSaddr(r.ClusterDNS).goTo(g.name("answered")),
				// An answer of kube-dns counts too if the switch sent the query there. Once the pod is bypassed it does not: it
				// did not come through the switch.
				f.rule().saddr(r.ClusterDNS).anySport(53).in(wayKey, g.name("trusted")).goTo(g.name("answered")))
		}
		chains := g.chains()
		if p.Leaving {
			for i := range chains {
				if chains[i].name == g.name("ask") {
					chains[i].rules = []rule{anyFamily().gotoOnly(g.name("direct"))}
				}
			}
		}
		out.sets = append(out.sets, g.sets(p.Open)...)
		out.chains = append(out.chains, append(chains, steered)...)
	}
	out.chains = append([]chain{post, pre}, out.chains...)
	return out
}

// renderNote is a pod table that does not steer yet: each packet of a TCP connection records that this connection keeps going
// to kube-dns. It covers connections that the pod opens after the agent listed them and before the steering rules are there.
func renderNote(p steer.Pod) table {
	out := renderPod(p)
	for _, g := range groupsOf(p) {
		for i := range out.chains {
			if out.chains[i].name == g.name("dns") {
				out.chains[i].rules = []rule{anyFamily().proto(steer.TCP).goTo(g.name("direct"))}
			}
		}
	}
	return out
}

// group is the pod table's part for the n-th redirect of each family, which in a cluster belong to one DNS Service. Its
// evidence is recorded by family and protocol. Trusted are the ways that got an answer, or sent their first query, in the last
// podTrust. Waiting are those with a query that is not answered yet. A way that is waiting and no longer trusted is bypassed.
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
		{name: g.name("waiting"), key: way, contents: dynamic, timeout: podHold, size: podWays, sweep: podSweep},
		{name: g.name("direct"), key: []nftables.SetDatatype{nftables.TypeNFProto, nftables.TypeInetService}, contents: dynamic,
			timeout: podConn, size: podConns, sweep: podSweep, elements: g.directPorts(open)},
	}
}

// directPorts are the elements for connections that keep going to kube-dns, as portKey reads them. They fill at most half of
// the set, so that there is space for others.
func (g group) directPorts(open []steer.Connection) []element {
	var out []element
	for _, c := range open {
		if len(out) < podConns/2 && slices.ContainsFunc(g.redirects, func(r steer.Redirect) bool { return r.ClusterDNS == c.ClusterDNS }) {
			key := make([]byte, 8) // each part of a concatenation begins a register of four bytes
			key[0] = familyOf(c.ClusterDNS.Is4()).nfproto
			binary.BigEndian.PutUint16(key[4:], c.Port)
			out = append(out, element{key: key})
		}
	}
	return out
}

func (g group) chains() []chain {
	return []chain{
		// A connection goes where its SYN went. A repeated SYN chooses again, so that a lost one does not cost the connection.
		{name: g.name("dns"), rules: []rule{
			anyFamily().proto(steer.UDP).goTo(g.name("ask")),
			anyFamily().syn(false).goTo(g.name("open")),
			anyFamily().remove(tcpPortKey, g.name("direct")).goTo(g.name("ask")),
		}},
		// A source port identifies a connection, because this chain is after every NAT in the pod's netns.
		{name: g.name("open"), rules: []rule{
			anyFamily().in(portKey, g.name("direct")).goTo(g.name("direct")),
			anyFamily().gotoOnly(g.name("steer")),
		}},
		{name: g.name("ask"), rules: []rule{
			anyFamily().in(wayKey, g.name("trusted")).goTo(g.name("steer")),
			anyFamily().in(wayKey, g.name("waiting")).goTo(g.name("direct")),
			anyFamily().update(wayKey, g.name("waiting")).update(sameKey(wayKey), g.name("trusted")).goTo(g.name("steer")),
			anyFamily().gotoOnly(g.name("steer")), // the set is full
		}},
		{name: g.name("direct"), rules: []rule{
			anyFamily().update(tcpPortKey, g.name("direct")).accept(),
			anyFamily().syn(true).goTo(g.name("steer")), // the set is full
		}},
		{name: g.name("answered"), rules: []rule{
			// A reset is no answer: a host whose switch was flushed sends one.
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
