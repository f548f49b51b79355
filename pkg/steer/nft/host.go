package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// Times and sizes in the host table.
const (
	// drainTime is how long open TCP connections to the agent still reach it after its lease was withdrawn or last renewed. So
	// an expired lease that is soon renewed cuts no connection. It is as long as the agent keeps an idle connection (10 s since
	// the last query; clients wait 5 s for an answer by default, resolv.conf(5) "timeout").
	drainTime = 10 * time.Second
	// lifetimeStep is the unit to which lease lifetimes are rounded up. The kernel keeps timeouts in ticks of its clock, which
	// has 100, 250, 300 or 1000 a second. On some of these kernels, a lifetime that is no multiple of 20 ms would read back
	// changed, and count as a difference forever.
	lifetimeStep = 20 * time.Millisecond
	// connMemory is how long after its last packet the host's rules remember that a TCP connection goes to kube-dns or, for a host
	// process with node interception, to the agent. Both close idle connections sooner.
	connMemory = 5 * time.Minute
	// connBound is the maximum number of connections in a set of connections, and of ports in the set direct. If a set is full,
	// only connections or ports that do not fit are affected.
	connBound = 65536
	// homeMemory is how long the host's rules trust that a source address is behind a link, without another route lookup. A
	// lookup costs more than half as much as all their other work for a packet (BenchmarkDelivery). If an address moves to
	// another link, it may be served on the old one for this time.
	homeMemory = 5 * time.Second
	// homeBound is more than the pod addresses of a node. If the set is full, queries from further sources each cost a route
	// lookup.
	homeBound = 4096
	// directMemory is how long the answers to a client's port keep the steering address as their source: longer than a pod trial
	// waits for an answer.
	directMemory = 2 * time.Second
	// zoneBase is the conntrack zone of the first local address; each local address has its own, by which answers are recognized.
	// It is high, to avoid the small numbers that service meshes and OVN use.
	zoneBase = 0x6e64
	// leaseBound is the size of the sets of leases and drains, far more than the few addresses that a node serves.
	leaseBound = 256
)

func hostCounters() []string {
	return []string{steer.CounterDeliveredUDP, steer.CounterDeliveredTCP, steer.CounterHeardUDP, steer.CounterHeardTCP,
		steer.CounterFallbackUDP, steer.CounterFallbackTCP, steer.CounterProbe,
		steer.CounterHostUDP, steer.CounterHostTCP, steer.CounterUplink, steer.CounterStranger, steer.CounterLeaseRenewal}
}

// renderHost returns the host table for a description. Addresses are in sets and maps where possible, so that the plugin can add
// a redirect without changing a rule.
func renderHost(h steer.Host) table {
	life := (cmp.Or(h.Lifetime, steer.DefaultLifetime) + lifetimeStep - 1).Truncate(lifetimeStep)
	t := table{counters: hostCounters()}
	t.sets = append(t.sets, interfaces("uplinks", h.Uplinks), interfaces("detours", h.Detours))
	pre := chain{name: "prerouting", hook: &hook{kind: "filter", num: unix.NF_INET_PRE_ROUTING, priority: prioBeforeRaw}}
	out := chain{name: "output", hook: &hook{kind: "filter", num: unix.NF_INET_LOCAL_OUT, priority: prioBeforeRaw}}
	post := chain{name: "postrouting", hook: &hook{kind: "filter", num: unix.NF_INET_POST_ROUTING, priority: prioLast}}
	in := chain{name: "input", hook: &hook{kind: "filter", num: unix.NF_INET_LOCAL_IN, priority: prioVeryLast}}
	nat := chain{name: "prober_nat", hook: &hook{kind: "nat", num: unix.NF_INET_POST_ROUTING, priority: prioSrcNAT}}
	host := chain{name: "host_output", hook: &hook{kind: "route", num: unix.NF_INET_LOCAL_OUT, priority: prioBeforeRaw}}
	for _, f := range families() {
		hf := hostOf(h, f)
		t.sets = append(t.sets, hf.sets()...)
		if h.OwnLocals {
			// write the local address as source into kube-dns's answers to processes of the node, too
			in.rules = append(in.rules, hf.postrouting()...)
		}
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			pre.rules = append(pre.rules, f.rule().nfproto().dport(p, 53).goTo("dns"+f.suffix))
			host.rules = append(host.rules, f.rule().nfproto().dport(p, 53).goTo("host_"+p.String()+f.suffix))
			// after every filter, to the chains that count and record queries: for UDP each packet, for TCP the SYN
			in.rules = append(in.rules, f.rule().nfproto().dport(p, 53).goTo("heard_"+p.String()+f.suffix))
		}
		out.rules = append(out.rules, hf.output()...)
		post.rules = append(post.rules, hf.postrouting()...)
		for _, source := range []netip.Addr{steer.ProbeSource(f.is4()), steer.FallbackCheckSource(f.is4())} {
			nat.rules = append(nat.rules, f.rule().saddr(source).oifNot(steer.ProberInterface).masquerade().end())
		}
		t.chains = append(t.chains, hf.chains(life)...)
		t.chains = append(t.chains, hf.secretChain(h.Secret))
		t.chains = append(t.chains, hf.evidenceChains()...)
		t.chains = append(t.chains, hf.cededChains()...)
		if h.OwnLocals {
			// A process that queries an address of this host gets that address as source, and kube-dns on another node could not send an
			// answer there.
			nat.rules = append(nat.rules, f.rule().in(sourceKey, hf.name("ours")).oifNot("lo").masquerade().end())
			t.chains = append(t.chains, hf.ownChains()...)
		}
		if h.InterceptNode {
			t.chains = append(t.chains, hf.hostChains()...)
		}
	}
	t.chains = append(t.chains, pre, in, out, post, nat)
	if h.InterceptNode {
		t.chains = append(t.chains, host)
	}
	return t
}

func interfaces(name string, links []string) set {
	s := set{name: name, key: []nftables.SetDatatype{nftables.TypeIFName}}
	for _, l := range slices.Compact(slices.Sorted(slices.Values(links))) {
		s.elements = append(s.elements, element{key: ifname(l), text: l})
	}
	return s
}

// hostFamily has the part of a host description that concerns one IP family.
type hostFamily struct {
	*family
	host      steer.Host
	redirects []steer.Redirect // the host's Redirects and FallbackOnly
	firstZone uint16           // conntrack zone of the first local address
}

func hostOf(h steer.Host, f *family) hostFamily {
	hf := hostFamily{family: f, host: h.OfFamily(f.is4()), firstZone: zoneBase}
	if !f.is4() {
		hf.firstZone += uint16(len(steer.OfFamily(h.Locals, true))) //nolint:gosec // a handful of addresses
	}
	hf.redirects = slices.Clone(hf.host.Redirects)
	for _, r := range hf.host.FallbackOnly {
		if !slices.ContainsFunc(hf.redirects, func(o steer.Redirect) bool { return o.Steering == r.Steering }) {
			hf.redirects = append(hf.redirects, r)
		}
	}
	return hf
}

// zone returns the conntrack zone of the i-th local address.
func (hf hostFamily) zone(i int) uint16 { return hf.firstZone + uint16(i) } //nolint:gosec // a handful of addresses

// name returns the name of a set or chain for this IP family, with the family's suffix.
func (hf hostFamily) name(base string) string { return base + hf.suffix }

func (hf hostFamily) sets() []set {
	addr := []nftables.SetDatatype{hf.addrType}
	conn := []nftables.SetDatatype{hf.addrType, nftables.TypeInetService, hf.addrType}
	ours := set{name: hf.name("ours"), key: addr}
	cluster := set{name: hf.name("cluster"), key: addr, value: &hf.addrType}
	intercept := set{name: hf.name("intercept"), key: addr, value: &hf.addrType}
	answer := set{name: hf.name("answer"), key: addr, value: &hf.addrType}
	for _, r := range hf.redirects {
		ours.elements = append(ours.elements, keyElement(r.Steering))
		cluster.elements = append(cluster.elements, mapElement(r.Steering, r.ClusterDNS))
	}
	for _, l := range hf.host.Locals {
		ours.elements = append(ours.elements, keyElement(l.Address))
		cluster.elements = append(cluster.elements, mapElement(l.Address, l.ClusterDNS))
	}
	if hf.host.InterceptNode {
		for _, r := range hf.host.Redirects {
			intercept.elements = append(intercept.elements, mapElement(r.ClusterDNS, r.Steering))
			answer.elements = append(answer.elements, mapElement(r.Steering, r.ClusterDNS))
		}
	}
	linkAndAddr := []nftables.SetDatatype{nftables.TypeIFIndex, hf.addrType}
	exempt := set{name: hf.name("exempt"), key: addr, contents: atLeast}
	for _, a := range hf.host.Exempt {
		exempt.elements = append(exempt.elements, keyElement(a))
	}
	sets := hf.evidenceSets()
	if hf.host.InterceptNode {
		sets = append(sets, set{name: hf.name("direct"), key: conn[:2], contents: dynamic, timeout: directMemory, size: connBound})
	}
	return append([]set{
		ours, cluster, intercept, answer, exempt,
		{name: hf.name("lease_udp"), key: addr, contents: dynamic, size: leaseBound},
		{name: hf.name("lease_tcp"), key: addr, contents: dynamic, size: leaseBound},
		{name: hf.name("drain"), key: addr, contents: dynamic, size: leaseBound},
		{name: hf.name("fallback_conn"), key: conn, contents: dynamic, timeout: connMemory, size: connBound},
		{name: hf.name("host_conn"), key: conn, contents: dynamic, timeout: connMemory, size: connBound},
		{name: hf.name("home"), key: linkAndAddr, contents: dynamic, timeout: homeMemory, size: homeBound},
	}, sets...)
}

// chains returns the chains that choose, for each packet, between the agent and kube-dns, and those for lease datagrams and for the
// agent's answers.
func (hf hostFamily) chains(life time.Duration) []chain {
	f := hf.family
	fallback, conn := hf.name("fallback"), hf.name("fallback_conn")
	leaseUDP, leaseTCP := hf.name("lease_udp"), hf.name("lease_tcp")
	probe, proof := steer.ProbeSource(f.is4()), steer.FallbackCheckSource(f.is4())

	dns := chain{name: hf.name("dns"), rules: slices.Concat([]rule{
		// A query that comes in by lo is from a process of the node. It reaches the socket or is refused: from this hook it cannot
		// be sent to kube-dns.
		f.rule().iif("lo").ret(),
	}, hf.skipUplinkServices(), []rule{
		f.rule().in(linkKey, "uplinks").in(destKey, hf.name("ours")).count(steer.CounterUplink).goTo(fallback),
		f.rule().in(linkKey, "uplinks").ret(),
		f.rule().iif(steer.ProberInterface).saddr(probe).in(destKey, hf.name("ours")).goTo(hf.name("probe")),
		f.rule().iif(steer.ProberInterface).saddr(proof).goTo(fallback),
	}, hf.noteDirect(), []rule{
		f.rule().in(destKey, hf.name("ours")).goTo(hf.name("switch")),
		f.rule().in(sourceKey, hf.name("exempt")).ret(),
		f.rule().setDaddrFrom(hf.name("intercept")).goTo(hf.name("switch")),
	})}
	probeChain := chain{name: hf.name("probe"), rules: []rule{
		f.rule().proto(steer.UDP).boundSocket().count(steer.CounterProbe).notrack().accept(),
		f.rule().syn(true).boundSocket().count(steer.CounterProbe).notrack().accept(),
		hf.ownStream(f.rule().syn(false)),
		f.rule().goTo(fallback),
	}}
	otherwise := f.rule().goTo(fallback)
	sw := chain{name: hf.name("switch"), rules: []rule{
		f.rule().in(homeKey, hf.name("home")).goTo(hf.name("known")),
		// If a source address is not routed by the link that its packet came in on, the query goes to kube-dns and is not recorded.
		// So forged addresses use up no entries in the sets that later rules fill, and no other pod's share of the misses in
		// flight.
		f.rule().stranger("detours").count(steer.CounterStranger).goTo(fallback),
		f.rule().addTo(homeKey, hf.name("home")).end(),
		f.rule().goTo(hf.name("known")),
	}}
	known := chain{name: hf.name("known"), rules: slices.Concat([]rule{
		f.rule().proto(steer.UDP).in(destKey, leaseUDP).boundSocket().notIn(clientKey, hf.name("bypass")).goTo(hf.name("deliver_udp")),
		f.rule().proto(steer.TCP).goTo(hf.name("tcp")),
	}, hf.cededTo(func() *ruleBuilder { return f.rule().proto(steer.UDP) }), []rule{otherwise})}
	tcp := chain{name: hf.name("tcp"), rules: slices.Concat([]rule{
		f.rule().syn(true).goTo(hf.name("syn")),
		f.rule().in(connKey, conn).update(connKey, conn).goTo(fallback),
		hf.ownStream(f.rule().in(destKey, leaseTCP)),
		hf.ownStream(f.rule().in(destKey, hf.name("drain"))),
	}, hf.cededStreams(), []rule{otherwise})}
	syn := chain{name: hf.name("syn"), rules: slices.Concat([]rule{
		f.rule().in(destKey, leaseTCP).boundSocket().notIn(clientKey, hf.name("bypass")).goTo(hf.name("deliver_tcp")),
	}, hf.cededTo(f.rule), []rule{
		f.rule().update(connKey, conn).end(),
		otherwise,
	})}
	deliverUDP := chain{name: hf.name("deliver_udp"), rules: append(hf.recordDelivery(),
		f.rule().count(steer.CounterDeliveredUDP).notrack().accept())}
	deliverTCP := chain{name: hf.name("deliver_tcp"), rules: append(hf.recordDelivery(),
		// If a connection from this source port went to kube-dns before, forget that: the new connection goes to the agent.
		f.rule().remove(connKey, conn).end(),
		f.rule().count(steer.CounterDeliveredTCP).notrack().accept())}
	fb := chain{name: fallback, rules: append([]rule{
		f.rule().proto(steer.UDP).count(steer.CounterFallbackUDP).end(),
		f.rule().syn(true).count(steer.CounterFallbackTCP).end(),
	}, hf.toKubeDNS()...)}

	answer := chain{name: hf.name("answers"), rules: []rule{f.rule().notrack().end()}}
	if hf.host.InterceptNode {
		// The answer to an intercepted query must come from the cluster DNS address, which the client queried.
		answer.rules = append(answer.rules, f.rule().notIn(clientDest, hf.name("direct")).setSaddrFrom(hf.name("answer")).end())
	}
	return []chain{dns, probeChain, sw, known, deliverUDP, tcp, syn, deliverTCP, fb, hf.control(life), answer}
}

// noteDirect returns rules that, with node interception, record clients that name the steering address, as pod trials do: their
// answers must come from there. As in the chain switch, no forged source address is recorded. A client that then takes the same port to
// name the cluster DNS address is forgotten again; one that is recorded is in home, too, so that no forged source address does that.
func (hf hostFamily) noteDirect() []rule {
	if !hf.host.InterceptNode {
		return nil
	}
	return []rule{
		hf.rule().notIn(destKey, hf.name("ours")).in(homeKey, hf.name("home")).remove(clientSource, hf.name("direct")).end(),
		hf.rule().in(destKey, hf.name("ours")).stranger("detours").count(steer.CounterStranger).goTo(hf.name("fallback")),
		hf.rule().in(destKey, hf.name("ours")).update(clientSource, hf.name("direct")).end(),
	}
}

// control returns the chain that applies the agent's control packets to the sets, and drops them.
func (hf hostFamily) control(life time.Duration) chain {
	leaseUDP, leaseTCP, drain := hf.name("lease_udp"), hf.name("lease_tcp"), hf.name("drain")
	c := chain{name: hf.name("control"), rules: []rule{
		hf.rule().dport(steer.UDP, steer.PortRenewUDP).updateFor(destKey, leaseUDP, life).end(),
		hf.rule().dport(steer.UDP, steer.PortRenewTCP).updateFor(destKey, leaseTCP, life).end(),
		hf.rule().dport(steer.UDP, steer.PortRenewTCP).updateFor(destKey, drain, drainTime).end(),
		hf.rule().dport(steer.UDP, steer.PortWithdrawUDP).remove(destKey, leaseUDP).end(),
		hf.rule().dport(steer.UDP, steer.PortWithdrawTCP).remove(destKey, leaseTCP).end(),
		hf.rule().dport(steer.UDP, steer.PortWithdrawTCP).updateFor(destKey, drain, drainTime).end(),
	}}
	c.rules = append(append(c.rules, hf.holdRules()...), hf.rule().count(steer.CounterLeaseRenewal).drop())
	return c
}

// output returns rules that keep the agent's answers, and queries of the node itself to the agent, out of conntrack, and that
// send control packets to the chain secret.
func (hf hostFamily) output() []rule {
	f := hf.family
	rules := append([]rule{f.rule().in(destKey, hf.name("ours")).mark(steer.Mark).root().goTo(hf.name("secret"))}, hf.ownProber()...)
	for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
		rules = append(rules, f.rule().sport(p, 53).in(sourceKey, hf.name("ours")).goTo(hf.name("answers")))
		if hf.host.OwnLocals {
			rules = append(rules, f.rule().dport(p, 53).in(destKey, hf.name("ours")).goTo(hf.name("own_"+p.String())))
			continue
		}
		rules = append(rules, f.rule().dport(p, 53).in(destKey, hf.name("ours")).notrack().end())
	}
	return append(rules, hf.healthProbes()...)
}

// secretChain returns the chain that passes control packets with the agent's secret on to the chain control. It does not drop
// others, so their sender learns that they had no effect. Programs that do not know the secret (the plugin, the installer)
// create the chain empty and leave its rules to the agent.
func (hf hostFamily) secretChain(s steer.Secret) chain {
	c := chain{name: hf.name("secret"), filledElsewhere: s == 0}
	if s != 0 {
		control := hf.name("control")
		c.rules = []rule{
			hf.rule().secret(steer.UDP, s).goTo(control),
			hf.rule().secret(steer.TCP, s).goTo(control),
		}
	}
	return c
}

// toKubeDNS returns rules that rewrite a packet's destination to the cluster DNS address. A packet to a local address also gets
// that address's conntrack zone, by which postrouting recognizes the answer.
func (hf hostFamily) toKubeDNS() []rule {
	var rules []rule
	for i, l := range hf.host.Locals {
		rules = append(rules, hf.rule().daddr(l.Address).setZone(hf.zone(i)).end())
	}
	return append(rules, hf.rule().setDaddrFrom(hf.name("cluster")).accept())
}

// postrouting returns rules that write the local address as source into an answer of kube-dns, if the query was to that
// address.
func (hf hostFamily) postrouting() []rule {
	var rules []rule
	for i, l := range hf.host.Locals {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			rules = append(rules, hf.rule().sport(p, 53).saddr(l.ClusterDNS).replyInZone(hf.zone(i)).setSaddr(l.Address).end())
		}
	}
	return rules
}

// hostChains returns the chains of node interception for the node's own processes. They check only for a lease, because in the
// output hook a socket match would find the sender's own socket. They rewrite the destination before they look for a lease,
// because leases are of steering addresses, and back if there is none. A packet that has its old destination again is not routed
// again.
func (hf hostFamily) hostChains() []chain {
	f := hf.family
	conn := hf.name("host_conn")
	undo := f.rule().setDaddrFrom(hf.name("cluster")).end()
	// The agent queries the cluster DNS addresses if its other upstreams fail. Without this rule, those queries would come back
	// to the agent.
	own := f.rule().mark(steer.Mark).clearMark().ret()
	udp := chain{name: hf.name("host_udp"), rules: []rule{
		own,
		f.rule().in(destKey, hf.name("ours")).ret(),
		f.rule().setDaddrFrom(hf.name("intercept")).end(),
		f.rule().in(destKey, hf.name("lease_udp")).count(steer.CounterHostUDP).notrack().accept(),
		undo,
	}}
	tcp := chain{name: hf.name("host_tcp"), rules: []rule{
		own,
		f.rule().in(destKey, hf.name("ours")).ret(),
		f.rule().setDaddrFrom(hf.name("intercept")).end(),
		f.rule().syn(true).in(destKey, hf.name("lease_tcp")).update(connKey, conn).count(steer.CounterHostTCP).notrack().accept(),
		f.rule().syn(true).remove(connKey, conn).end(),
		f.rule().in(connKey, conn).update(connKey, conn).notrack().accept(),
		undo,
	}}
	return []chain{udp, tcp}
}

func keyElement(a netip.Addr) element { return element{key: a.AsSlice(), text: a.String()} }

func mapElement(k, v netip.Addr) element {
	return element{key: k.AsSlice(), value: v.AsSlice(), text: k.String() + " : " + v.String()}
}
