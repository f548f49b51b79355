package iptables

import (
	"fmt"

	"github.com/neardns/neardns/pkg/steer"
)

// Rules of a node that took the place of a NodeLocal DNSCache, as pkg/steer has them for nftables: its clients, host processes
// among them, name a local address, and node-cache may come back at any time.
//
// A packet that is to fall back must be tracked and must meet our translation first. So our jumps stand before node-cache's
// NOTRACK rules and before kube-proxy's jumps, and nothing that passed our chains goes on to theirs.

// ownMark matches what the node's own processes are given back, on its way through the hairpin.
func ownMark() string { return fmt.Sprintf("-m mark --mark %#x", steer.OwnMark) }

// tracked is what becomes of a packet whose way the nat table chooses or has chosen.
func (h host) tracked() string {
	if h.own {
		return "ACCEPT"
	}
	return "RETURN"
}

// untracked are node-cache's rules for our addresses (KEP-1024). It puts them first where they are missing.
func (h host) untracked() []foreign {
	if !h.own {
		return nil
	}
	var out []foreign
	for _, a := range h.ours() {
		for _, does := range []string{"-j CT --notrack", "-j NOTRACK"} {
			out = append(out, foreign{" " + cidr(a) + " ", does})
		}
	}
	return out
}

// translated are kube-proxy's jumps: it has rules for those of our addresses that are a Service's.
func (h host) translated() []foreign {
	if !h.own {
		return nil
	}
	return []foreign{{"", "-j KUBE-SERVICES"}}
}

// fromBeside leaves a Service's address on our link to kube-proxy where the packet comes from beside the node.
func (h host) fromBeside(verdict string) []string {
	var rules []string
	for _, p := range h.served {
		for _, u := range h.uplinks {
			if p.service {
				rules = append(rules, fmt.Sprintf("-d %s -i %s -j %s", cidr(p.ours), u, verdict))
			}
		}
	}
	return rules
}

// healthProbes keeps the kubelet's probes of a local address out of conntrack, and what they are answered (kubernetes/dns#352).
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

// cedes is for packets without a lease to an address that we cede: to another program's socket, but not to our own, which is
// transparent.
func (h host) cedes(proto, ours, others string) []string {
	var rules []string
	for _, a := range h.ceded {
		to := toPort53(a, proto) + " -m socket "
		rules = append(rules, to+"--transparent "+ours, to+others)
	}
	return rules
}

// ownRaw has the node's own questions tracked, but over UDP under a lease, and marked for the hairpin: their source may be our
// address itself, so nothing else tells them on the way out.
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

// ownNAT gives them back, with the lease alone to go by.
func (h host) ownNAT() []chain {
	if !h.own {
		return nil
	}
	return []chain{{table: "nat", name: ownChain, from: []jump{{base: "OUTPUT", before: h.translated()}}, rules: []string{
		ownMark() + " -p tcp " + h.leaseAlone(steer.TCP) + " -j ACCEPT",
		ownMark() + " -g " + giveBackChain,
	}}}
}

// untranslated gives back what is for a Service's address and kube-proxy has no rule for: an address that is none after all, or
// whose Service is gone. While there is one, its own translation is the fallback, which needs nothing of ours: not the hairpin
// either, which does not come back with rules that somebody saved and restores at boot.
func (h host) untranslated() []chain {
	c := chain{table: "nat", name: untranslated, from: []jump{{base: "PREROUTING", last: true}}, rules: append([]string{"-i lo -j RETURN"}, h.fromBeside("RETURN")...)}
	if h.own {
		c.from = append(c.from, jump{base: "OUTPUT", last: true})
	}
	guards := len(c.rules)
	for _, p := range h.served {
		if p.service {
			c.rules = append(c.rules, p.giveBack()...)
		}
	}
	if len(c.rules) == guards {
		return nil
	}
	return []chain{c}
}
