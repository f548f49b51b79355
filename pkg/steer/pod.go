package steer

import (
	"math"
	"time"

	"github.com/google/nftables"
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
	// podWays is above what the few keys of one pod can leave in a set between two sweeps, podConns what a pod that asks over TCP
	// alone opens in podConn at 25 connections a second; a full set sends further ones the way they would go without evidence.
	podWays, podConns = 128, 512
)

// render makes the pod table. All of the evidence is keyed by cluster DNS address and protocol: trusted are those that answered,
// or were first asked, in the last podTrust; waiting are those to whose question no answer came yet. Who is waiting and not
// trusted any more is given back.
func (p Pod) render() table {
	post := chain{name: "postrouting", hook: &hook{kind: "filter", num: unix.NF_INET_POST_ROUTING, priority: prioLast}}
	pre := chain{name: "prerouting", hook: &hook{kind: "filter", num: unix.NF_INET_PRE_ROUTING, priority: prioRaw}}
	if p.Always {
		for _, r := range p.Redirects {
			f := familyOf(r.Is4())
			for _, proto := range []Protocol{UDP, TCP} {
				post.rules = append(post.rules, f.rule().daddr(r.ClusterDNS).dport(proto, 53).setDaddr(r.Steering).end())
				pre.rules = append(pre.rules, f.rule().saddr(r.Steering).proto(proto).setSaddr(r.ClusterDNS).end())
			}
		}
		return table{chains: []chain{post, pre}}
	}
	var out table
	for _, f := range families() {
		pf := podFamily{f}
		steered := chain{name: pf.name("steer")}
		for _, r := range p.Redirects {
			if r.Is4() != f.is4() {
				continue
			}
			post.rules = append(post.rules,
				f.rule().daddr(r.ClusterDNS).dport(UDP, 53).goTo(pf.name("ask")),
				f.rule().daddr(r.ClusterDNS).dport(TCP, 53).goTo(pf.name("tcp")))
			steered.rules = append(steered.rules, f.rule().daddr(r.ClusterDNS).setDaddr(r.Steering).end())
			pre.rules = append(pre.rules,
				// No port here: the later fragments of a large answer have none, and without conntrack in the pod nothing
				// reassembles them before this chain.
				f.rule().saddr(r.Steering).proto(UDP).setSaddr(r.ClusterDNS).goTo(pf.name("answered")),
				// A reset is no answer: it is what a host says whose switch was flushed.
				f.rule().saddr(r.Steering).synAck().setSaddr(r.ClusterDNS).goTo(pf.name("answered")),
				f.rule().saddr(r.Steering).proto(TCP).setSaddr(r.ClusterDNS).end())
			// What the switch gave to kube-dns is an answer, too. Once a pod was given back it is none: nothing came our way.
			pre.rules = append(pre.rules,
				f.rule().saddr(r.ClusterDNS).sport(UDP, 53).answerIn(pf.name("trusted")).goTo(pf.name("answered")),
				f.rule().saddr(r.ClusterDNS).sport(TCP, 53).synAck().answerIn(pf.name("trusted")).goTo(pf.name("answered")))
		}
		if len(steered.rules) > 0 {
			out.sets = append(out.sets, pf.sets()...)
			out.chains = append(out.chains, append(pf.chains(), steered)...)
		}
	}
	out.chains = append([]chain{post, pre}, out.chains...)
	return out
}

// podFamily is the pod table's part for one family.
type podFamily struct{ *family }

func (pf podFamily) name(base string) string { return base + pf.suffix }

func (pf podFamily) sets() []set {
	way := []nftables.SetDatatype{pf.addrType, nftables.TypeInetProto}
	return []set{
		{name: pf.name("trusted"), key: way, contents: dynamic, timeout: podTrust, size: podWays, sweep: podSweep},
		{name: pf.name("waiting"), key: way, contents: dynamic, timeout: podHold, size: podWays, sweep: podSweep},
		{name: pf.name("direct"), key: []nftables.SetDatatype{pf.addrType, nftables.TypeInetService, pf.addrType}, contents: dynamic,
			timeout: podConn, size: podConns, sweep: podSweep},
	}
}

func (pf podFamily) chains() []chain {
	f := pf.family
	return []chain{
		// A connection's way is chosen at its SYN. A repeated one chooses again, so that a lost SYN costs no connection.
		{name: pf.name("tcp"), rules: []rule{
			f.rule().syn(false).connIn(pf.name("direct")).goTo(pf.name("direct")),
			f.rule().syn(false).goTo(pf.name("steer")),
			f.rule().connDelete(pf.name("direct")).end(),
			f.rule().gotoOnly(pf.name("ask")),
		}},
		{name: pf.name("ask"), rules: []rule{
			f.rule().questionIn(pf.name("trusted")).goTo(pf.name("steer")),
			f.rule().questionIn(pf.name("waiting")).goTo(pf.name("direct")),
			f.rule().questionUpdate(pf.name("waiting")).end(),
			f.rule().questionUpdate(pf.name("trusted")).end(),
			f.rule().gotoOnly(pf.name("steer")),
		}},
		{name: pf.name("direct"), rules: []rule{f.rule().connUpdate(pf.name("direct")).end()}},
		{name: pf.name("answered"), rules: []rule{
			f.rule().answerUpdate(pf.name("trusted")).end(),
			f.rule().answerDelete(pf.name("waiting")).end(),
		}},
	}
}

func familyOf(is4 bool) *family {
	if is4 {
		return families()[0]
	}
	return families()[1]
}
