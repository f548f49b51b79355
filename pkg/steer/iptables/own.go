package iptables

import (
	"fmt"

	"github.com/neardns/neardns/pkg/steer"
)

// This file has the rules for addresses that the node's own processes query: local addresses where neardns replaced a NodeLocal
// DNSCache, and a cluster DNS address on neardns's link. node-cache may start again at any time. Package nft has rules for the
// same cases.
//
// A packet for kube-dns must be tracked, and must pass neardns's translation before kube-proxy's, except to a Service's address
// (see untranslated). Therefore neardns's jumps precede node-cache's NOTRACK rules and kube-proxy's jumps, and a packet that
// neardns's chains have decided about does not go on to those rules.

// ownMark matches packets of the node's own processes that ownRaw or ownProber marked. Only those for kube-dns are routed through the
// hairpin.
func ownMark() string { return fmt.Sprintf("-m mark --mark %#x", steer.OwnMark) }

// tracked is the verdict for a packet that stays tracked: in table raw, so that table nat decides about it, and in table nat, so
// that it reaches the agent. With h.own it is ACCEPT, so that node-cache's NOTRACK rules and kube-proxy's rules do not see the
// packet.
func (h host) tracked() string {
	if h.own {
		return "ACCEPT"
	}
	return "RETURN"
}

// untracked matches node-cache's NOTRACK rules for the addresses of h (KEP-1024). If they are missing, node-cache inserts them
// before all other rules.
func (h host) untracked() []foreign {
	if !h.own {
		return nil
	}
	var out []foreign
	for _, a := range h.leasable() {
		for _, ending := range []string{"-j CT --notrack", "-j NOTRACK"} {
			out = append(out, foreign{" " + cidr(a) + " ", ending})
		}
	}
	return out
}

// translated matches kube-proxy's jump to KUBE-SERVICES, which has rules for those of our addresses that are a Service's.
func (h host) translated() []foreign {
	if !h.own {
		return nil
	}
	return []foreign{{"", "-j KUBE-SERVICES"}}
}

// skipUplinkServices returns rules that leave packets from outside the node to kube-proxy, if their destination is a Service's
// address that neardns has on its own link.
func (h host) skipUplinkServices(verdict string) []string {
	var rules []string
	for _, p := range h.served {
		for _, u := range h.uplinks {
			if p.service {
				rules = append(rules, fmt.Sprintf("-d %s -i %s -j %s", cidr(p.address), u, verdict))
			}
		}
	}
	return rules
}

// healthProbes returns rules that keep the kubelet's health probes of a local address, and the answers to them, out of
// conntrack (kubernetes/dns#352).
func (h host) healthProbes() []string {
	if h.health == 0 {
		return nil
	}
	var rules []string
	for _, a := range h.locals {
		rules = append(rules, fmt.Sprintf("-d %s -p tcp -m tcp --dport %d -j CT --notrack", cidr(a), h.health),
			fmt.Sprintf("-s %s -p tcp -m tcp --sport %d -j CT --notrack", cidr(a), h.health))
	}
	return rules
}

// toCeded returns rules for packets to a ceded address (steer.Host.Ceded) that has no lease. If the bound socket is
// transparent, it is the agent's, and the rule has the ending ours; if not, another program's, and the ending others.
func (h host) toCeded(proto, ours, others string) []string {
	var rules []string
	for _, a := range h.ceded {
		to := toPort53(a, proto) + " -m socket "
		rules = append(rules, to+"--transparent "+ours, to+others)
	}
	return rules
}

// ownRaw returns the chain for queries of the node's own processes. A UDP query under a lease is not tracked. All others are
// marked: their source may be the local address itself, so later rules can recognize them only by a mark.
func (h host) ownRaw() []chain {
	if !h.own {
		return nil
	}
	return []chain{{table: "raw", name: ownChain, rules: []string{
		"-p udp " + h.leaseAlone(steer.UDP) + " -g " + deliverChain,
		fmt.Sprintf("-j MARK --set-mark %#x", steer.OwnMark),
		"-j ACCEPT",
	}}}
}

// ownProber returns rules for queries of a prober without its own netns (D-031): those from ProbeSource go to the agent, those
// from FallbackCheckSource to kube-dns. An answer to a probe is not tracked either, because conntrack has not seen the query.
func (h host) ownProber() []string {
	if !h.own {
		return nil
	}
	probe, proof := cidr(steer.ProbeSource(h.is4)), cidr(steer.FallbackCheckSource(h.is4))
	rules := []string{"-s " + probe + " -g " + deliverChain, "-d " + probe + " -o lo -g " + deliverChain}
	if len(h.served) > 0 {
		rules = append(rules, "-s "+proof+fmt.Sprintf(" -j MARK --set-mark %#x", steer.OwnMark))
	}
	return append(rules, "-s "+proof+" -j ACCEPT")
}

// ownNAT returns the chain that sends the node's own tracked queries to kube-dns, except over TCP under a lease; the prober's
// fallback checks always go to kube-dns.
func (h host) ownNAT() []chain {
	if !h.own {
		return nil
	}
	return []chain{{table: "nat", name: ownChain, from: []jump{{base: "OUTPUT", before: h.translated()}}, rules: []string{
		ownMark() + " -s " + cidr(steer.FallbackCheckSource(h.is4)) + " -g " + giveBackChain,
		ownMark() + " -p tcp " + h.leaseAlone(steer.TCP) + " -j ACCEPT",
		ownMark() + " -g " + giveBackChain,
	}}}
}

// untranslated returns the chain that sends packets for a Service's address to kube-dns if kube-proxy has not translated them:
// there is no such Service, or it was deleted. If there is one, kube-proxy's translation is the fallback. That works without
// neardns's hairpin, which is absent after a boot at which only saved iptables rules were restored.
func (h host) untranslated() []chain {
	c := chain{table: "nat", name: untranslated, from: []jump{{base: "PREROUTING", last: true}}}
	c.rules = append([]string{"-i lo -j RETURN"}, h.skipUplinkServices("RETURN")...)
	if h.own {
		c.from = append(c.from, jump{base: "OUTPUT", last: true})
	}
	guards := len(c.rules)
	for _, p := range h.served {
		if p.service {
			c.rules = append(c.rules, p.toKubeDNS()...)
		}
	}
	if len(c.rules) == guards {
		return nil
	}
	return []chain{c}
}
