package nft

import "github.com/neardns/neardns/pkg/steer"

// This file has the rules for addresses that the node's own processes query: local addresses where neardns replaced a NodeLocal
// DNSCache, and a cluster DNS address on neardns's link. NodeLocal DNSCache may start again at any time, and must then get its
// packets.

// cededTo returns rules that deliver packets to another program's socket at a ceded address (steer.Host.Ceded). The agent's own
// sockets there are transparent, so the rules tell the two apart even if the agent hangs, and also work while no agent runs.
func (hf hostFamily) cededTo(match func() *ruleBuilder) []rule {
	var rules []rule
	for _, a := range hf.host.Ceded {
		rules = append(rules, match().daddr(a).boundSocket().anySocket().goTo(hf.name("ceded")))
	}
	return rules
}

// cededStreams returns rules that deliver a TCP connection's packets after the SYN to another program's socket at a ceded
// address.
func (hf hostFamily) cededStreams() []rule {
	var rules []rule
	for _, a := range hf.host.Ceded {
		rules = append(rules, hf.rule().daddr(a).anySocket().notrack().accept())
	}
	return rules
}

// ownStream completes a rule that delivers a TCP connection's packets after the SYN to the agent's socket. If there are ceded
// addresses, the agent's sockets are the transparent ones.
func (hf hostFamily) ownStream(b *ruleBuilder) rule {
	if len(hf.host.Ceded) > 0 {
		return b.transparentSocket().notrack().accept()
	}
	return b.anySocket().notrack().accept()
}

func (hf hostFamily) cededChains() []chain {
	if len(hf.host.Ceded) == 0 {
		return nil
	}
	return []chain{{name: hf.name("ceded"), rules: []rule{
		// the source port may have been that of a connection to kube-dns before
		hf.rule().remove(connKey, hf.name("fallback_conn")).end(),
		hf.rule().notrack().accept(),
	}}}
}

// ownChains returns the chains for queries of the node's own processes to the agent's addresses. They check only for a lease,
// because in the output hook a socket match would find the sender's own socket.
func (hf hostFamily) ownChains() []chain {
	f := hf.family
	conn, back := hf.name("fallback_conn"), hf.name("own_fallback")
	return []chain{
		{name: hf.name("own_udp"), rules: []rule{
			f.rule().in(destKey, hf.name("lease_udp")).notrack().accept(),
			f.rule().goTo(back),
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

// ownProber returns rules for queries of a prober without its own netns (D-031): those from ProbeSource go to the agent, those
// from FallbackCheckSource to kube-dns.
func (hf hostFamily) ownProber() []rule {
	if !hf.host.OwnLocals {
		return nil
	}
	ours := hf.name("ours")
	return []rule{
		hf.rule().saddr(steer.ProbeSource(hf.is4())).in(destKey, ours).notrack().accept(),
		hf.rule().saddr(steer.FallbackCheckSource(hf.is4())).in(destKey, ours).goTo(hf.name("own_fallback")),
	}
}

// healthProbes returns rules that keep the kubelet's health probes of a local address, and the answers to them, out of
// conntrack (kubernetes/dns#352).
func (hf hostFamily) healthProbes() []rule {
	if hf.host.HealthPort == 0 {
		return nil
	}
	var rules []rule
	for _, l := range hf.host.Locals {
		rules = append(rules,
			hf.rule().dport(steer.TCP, hf.host.HealthPort).daddr(l.Address).notrack().end(),
			hf.rule().sport(steer.TCP, hf.host.HealthPort).saddr(l.Address).notrack().end())
	}
	return rules
}

// skipUplinkServices returns rules that leave packets from outside the node to kube-proxy, if their destination is a Service's
// address that neardns has on its own link.
func (hf hostFamily) skipUplinkServices() []rule {
	var rules []rule
	for _, l := range hf.host.Locals {
		if l.Service {
			rules = append(rules, hf.rule().in(linkKey, "uplinks").daddr(l.Address).ret())
		}
	}
	return rules
}
