package nft

import (
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// Rules for a node where neardns replaced a NodeLocal DNSCache, whose clients, host processes among them, query a local
// address. NodeLocal DNSCache may start again at any time, and must then receive its packets.

// cededTo delivers to another program's socket that is bound at a ceded address. The agent's sockets there are transparent, so
// the rule never takes a hung agent's socket for the other program's, and works without a running agent.
func (hf hostFamily) cededTo(match func() *ruleBuilder) []rule {
	var rules []rule
	for _, a := range hf.ceded {
		rules = append(rules, match().daddr(a).boundSocket().anySocket().goTo(hf.name("ceded")))
	}
	return rules
}

// cededStreams delivers the packets after the SYN.
func (hf hostFamily) cededStreams() []rule {
	var rules []rule
	for _, a := range hf.ceded {
		rules = append(rules, hf.rule().daddr(a).anySocket().notrack().accept())
	}
	return rules
}

// ownStream ends a rule for the packets after a SYN to the agent. If addresses are ceded, the agent's sockets are the
// transparent ones.
func (hf hostFamily) ownStream(b *ruleBuilder) rule {
	if len(hf.ceded) > 0 {
		return b.transparentSocket().notrack().accept()
	}
	return b.anySocket().notrack().accept()
}

func (hf hostFamily) cededChains() []chain {
	if len(hf.ceded) == 0 {
		return nil
	}
	return []chain{{name: hf.name("ceded"), rules: []rule{
		hf.rule().remove(connKey, hf.name("fallback_conn")).end(), // as in deliver_tcp
		hf.rule().notrack().accept(),
	}}}
}

// ownChains are for the node's own processes. They depend on the lease and check no socket: in output, "socket" would find the
// sender's own.
func (hf hostFamily) ownChains() []chain {
	if !hf.ownLocals {
		return nil
	}
	f := hf.family
	conn, back := hf.name("fallback_conn"), hf.name("own_fallback")
	return []chain{
		{name: hf.name("own_udp"), rules: []rule{
			f.rule().in(destKey, hf.name("lease_udp")).notrack().accept(),
			f.rule().textf("goto %s", back).gotoOnly(back),
		}},
		{name: hf.name("own_tcp"), rules: []rule{
			f.rule().syn(true).in(destKey, hf.name("lease_tcp")).remove(connKey, conn).end(),
			f.rule().syn(true).in(destKey, hf.name("lease_tcp")).notrack().accept(),
			f.rule().syn(true).update(connKey, conn).goTo(back),
			f.rule().in(connKey, conn).update(connKey, conn).goTo(back),
			f.rule().notrack().accept(),
		}},
		{name: back, rules: hf.toKubeDNS()},
	}
}

// ownProber sends the queries of a prober without a netns the way that its sources stand for (D-031).
func (hf hostFamily) ownProber() []rule {
	if !hf.ownLocals {
		return nil
	}
	ours := hf.name("ours")
	return []rule{
		hf.rule().saddr(steer.ProbeSource(hf.is4())).in(destKey, ours).notrack().accept(),
		hf.rule().saddr(steer.FallbackCheckSource(hf.is4())).in(destKey, ours).goTo(hf.name("own_fallback")),
	}
}

// healthProbes keeps the kubelet's probes of a local address, and their answers, out of conntrack (kubernetes/dns#352).
func (hf hostFamily) healthProbes() []rule {
	if hf.health == 0 {
		return nil
	}
	var rules []rule
	for _, l := range hf.locals {
		rules = append(rules,
			hf.rule().dport(steer.TCP, hf.health).daddr(l.Address).notrack().end(),
			hf.rule().sport(steer.TCP, hf.health).saddr(l.Address).notrack().end())
	}
	return rules
}

// ownInput restores the local address as source of kube-dns's answers to processes of the node.
func (hf hostFamily) ownInput() []rule {
	if !hf.ownLocals {
		return nil
	}
	return hf.postrouting()
}

// ownNAT masquerades the node's own queries that fell back: a process that queries an address of this host uses that address as
// source, and kube-dns on another node could not answer it.
func (hf hostFamily) ownNAT() []rule {
	if !hf.ownLocals {
		return nil
	}
	return []rule{hf.rule().in(sourceKey, hf.name("ours")).oifNot("lo").masquerade().end()}
}

// skipUplinkServices leaves packets for a Service's address on the agent's link to kube-proxy if they come from outside the
// node.
func (hf hostFamily) skipUplinkServices() []rule {
	var rules []rule
	for _, l := range hf.locals {
		if l.Service {
			rules = append(rules, hf.rule().in(linkKey, "uplinks").daddr(l.Address).ret())
		}
	}
	return rules
}

func sortedAddrs(in []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(in), netip.Addr.Compare)
}
