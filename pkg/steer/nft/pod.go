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

// The pod table gives a pod back by itself. Where its questions are lost does not matter then (a program at the pod's link, an
// eBPF policy, a switch that was flushed while no agent lives, a fallback that leads nowhere any more), nor whether the question
// or its answer is, nor whether anything of ours is alive to see it: a question that is sent podTrust after another
// one to which nothing came keeps its cluster DNS address, as in a pod that is not steered.
const (
	// podTrust is how long a pod waits for an answer until its next questions are given back. Resolvers repeat a question after 5 s
	// (resolv.conf(5)), musl's after 2.5 s, and TCP its second SYN after 3 s, so the repetition is answered. The agent's own
	// answers come sooner, but for names whose servers are slow: then one of the pod's other questions may go to kube-dns.
	podTrust = 2 * time.Second
	// podHold is how long a pod is given back unless an answer from the steering address comes first, as the agent's own trial
	// brings it. When it has passed one question tries the way.
	podHold = 10 * time.Minute
	// podConn is how long a connection that was given back is remembered after its last packet.
	podConn = 20 * time.Second
	// podSweep is how often expired elements are freed. They are not seen before that either. The kernel's default, a second,
	// would wake a worker for each set of each pod.
	podSweep = 10 * time.Second
	// podWays is above what the four keys of one group can leave in a set between two sweeps, podConns what a pod that asks over TCP
	// alone opens in podConn at 25 connections a second; a full set sends further ones the way they would go without evidence.
	podWays, podConns = 128, 512
)

// renderPod makes the pod table. An ADD pays for each expression that the kernel has to read, so both families of a group share sets
// and chains, and what all rules of a chain would match stands before the chain.
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
				// What the switch gave to kube-dns is an answer, too. Once a pod was given back it is none: nothing came our way.
				f.rule().saddr(r.ClusterDNS).anySport(53).wayIn(g.name("trusted")).goTo(g.name("answered")))
		}
		out.sets = append(out.sets, g.sets(p.Open)...)
		out.chains = append(out.chains, append(g.chains(), steered)...)
	}
	out.chains = append([]chain{post, pre}, out.chains...)
	return out
}

// renderNote is the table before it steers: a packet of a connection notes that it keeps its way. What comes between a look at a pod's
// connections and the rules that steer it is among them so.
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

// group is the pod table's part for the n-th redirect of each family, which in a cluster are one DNS Service. Its evidence is kept
// by family and protocol: trusted are the ways that answered, or were first asked, in the last podTrust; waiting are those to whose
// question no answer came yet. A way that is waiting and not trusted any more is given back.
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
			timeout: podConn, size: podConns, sweep: podSweep, elements: g.given(open)},
	}
}

// given are the ports of connections that keep their way, as portKey reads them; no more than leave room for others.
func (g group) given(open []steer.Connection) []element {
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
		// A connection's way is chosen at its SYN. A repeated one chooses again, so that a lost SYN costs no connection.
		{name: g.name("dns"), rules: []rule{
			anyFamily().proto(steer.UDP).goTo(g.name("ask")),
			anyFamily().syn(false).goTo(g.name("open")),
			anyFamily().portDelete(g.name("direct")).goTo(g.name("ask")),
		}},
		// A source port is enough to know a connection by: this chain is behind every NAT in the pod's netns.
		{name: g.name("open"), rules: []rule{
			anyFamily().portIn(g.name("direct")).goTo(g.name("direct")),
			anyFamily().gotoOnly(g.name("steer")),
		}},
		{name: g.name("ask"), rules: []rule{
			anyFamily().wayIn(g.name("trusted")).goTo(g.name("steer")),
			anyFamily().wayIn(g.name("waiting")).goTo(g.name("direct")),
			anyFamily().wayUpdate(g.name("waiting"), g.name("trusted")).goTo(g.name("steer")),
			anyFamily().gotoOnly(g.name("steer")), // no room to note it
		}},
		{name: g.name("direct"), rules: []rule{anyFamily().portUpdate(g.name("direct")).end()}},
		{name: g.name("answered"), rules: []rule{
			// A reset is no answer: it is what a host says whose switch was flushed.
			anyFamily().notSynAck().ret(),
			anyFamily().wayUpdate(g.name("trusted")).wayDelete(g.name("waiting")).end(),
		}},
	}
}

func familyOf(is4 bool) *family {
	if is4 {
		return families()[0]
	}
	return families()[1]
}
