package nft

import (
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// Rules of a node that took the place of a NodeLocal DNSCache: its clients, host processes among them, name a local address.
// It may come back at any time, and must then find its packets.

// cededTo delivers to another program's socket that is bound at an address that we cede. Ours are transparent there, so a
// hung agent's is never taken for one, and nobody has to be alive to cede anything.
func (hf hostFamily) cededTo(match func() *ruleBuilder) []rule {
	var rules []rule
	for _, a := range hf.ceded {
		rules = append(rules, match().daddr(a).boundSocket().anySocket().goTo(hf.name("ceded")))
	}
	return rules
}

// cededStreams delivers what follows a SYN.
func (hf hostFamily) cededStreams() []rule {
	var rules []rule
	for _, a := range hf.ceded {
		rules = append(rules, hf.rule().daddr(a).anySocket().notrack().accept())
	}
	return rules
}

// ownStream ends a rule for what follows a SYN to the agent. Where addresses are ceded, its sockets are the transparent ones.
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
		hf.rule().connDelete(hf.name("fallback_conn")).end(), // as in deliver_tcp
		hf.rule().notrack().accept(),
	}}}
}

// ownChains are for the node's own processes. Their packets have the lease to go by and no socket: in output, "socket" would
// find the sender's own.
func (hf hostFamily) ownChains() []chain {
	if !hf.ownLocals {
		return nil
	}
	f := hf.family
	conn, back := hf.name("fallback_conn"), hf.name("own_fallback")
	return []chain{
		{name: hf.name("own_udp"), rules: []rule{
			f.rule().daddrIn(hf.name("lease_udp")).notrack().accept(),
			f.rule().say("goto %s", back).gotoOnly(back),
		}},
		{name: hf.name("own_tcp"), rules: []rule{
			f.rule().syn(true).daddrIn(hf.name("lease_tcp")).connDelete(conn).end(),
			f.rule().syn(true).daddrIn(hf.name("lease_tcp")).notrack().accept(),
			f.rule().syn(true).connUpdate(conn).goTo(back),
			f.rule().connIn(conn).connUpdate(conn).goTo(back),
			f.rule().notrack().accept(),
		}},
		{name: back, rules: hf.giveBack()},
	}
}

// healthProbes keeps the kubelet's probes of a local address out of conntrack, and what they are answered (kubernetes/dns#352).
func (hf hostFamily) healthProbes() []rule {
	if hf.health == 0 {
		return nil
	}
	var rules []rule
	for _, l := range hf.locals {
		rules = append(rules, hf.rule().dport(steer.TCP, hf.health).daddr(l.Address).notrack().end(), hf.rule().sport(steer.TCP, hf.health).saddr(l.Address).notrack().end())
	}
	return rules
}

// ownInput gives the local address back as source to what kube-dns answered a process of the node.
func (hf hostFamily) ownInput() []rule {
	if !hf.ownLocals {
		return nil
	}
	return hf.postrouting()
}

// ownNAT masquerades the node's own questions that fell back: a process that asks an address of this host has that address
// as its source, and kube-dns elsewhere could not answer it.
func (hf hostFamily) ownNAT() []rule {
	if !hf.ownLocals {
		return nil
	}
	return []rule{hf.rule().saddrIn(hf.name("ours")).oifNot("lo").masquerade().end()}
}

// servicesFromBeside leaves a Service's address on our link to kube-proxy where the packet comes from beside the node.
func (hf hostFamily) servicesFromBeside() []rule {
	var rules []rule
	for _, l := range hf.locals {
		if l.Service {
			rules = append(rules, hf.rule().iifIn("uplinks").daddr(l.Address).ret())
		}
	}
	return rules
}

func sortedAddrs(in []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(in), netip.Addr.Compare)
}
