package iptables

import (
	"fmt"

	"github.com/neardns/neardns/pkg/steer"
)

// Rules for a node where neardns replaced a NodeLocal DNSCache, as pkg/steer/nft has them: its clients, host processes among
// them, query a local address, and node-cache may start again at any time.
//
// A packet that is to fall back must be tracked and must meet our translation first. Therefore our jumps come before
// node-cache's NOTRACK rules and before kube-proxy's jumps, and no packet that passed our chains goes on to theirs.

// ownMark matches fallback packets of the node's own processes, on their way through the hairpin.
func ownMark() string { return fmt.Sprintf("-m mark --mark %#x", steer.OwnMark) }

// tracked is the verdict for a packet that nat decides, or has decided, about.
func (h host) tracked() string {
	if h.own {
		return "ACCEPT"
	}
	return "RETURN"
}

// untracked matches node-cache's rules for the same addresses (KEP-1024), which node-cache puts first whenever they are
// missing.
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

// translated matches kube-proxy's jumps: it has rules for those addresses that are a Service's.
func (h host) translated() []foreign {
	if !h.own {
		return nil
	}
	return []foreign{{"", "-j KUBE-SERVICES"}}
}

// skipUplinkServices leaves packets for a Service's address on the agent's link to kube-proxy if they come from outside the
// node.
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

// healthProbes keeps the kubelet's probes of a local address, and their answers, out of conntrack (kubernetes/dns#352).
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

// toCeded delivers packets without a lease to another program's socket at a ceded address. The agent's own sockets there are
// transparent.
func (h host) toCeded(proto, ours, others string) []string {
	var rules []string
	for _, a := range h.ceded {
		to := toPort53(a, proto) + " -m socket "
		rules = append(rules, to+"--transparent "+ours, to+others)
	}
	return rules
}

// ownRaw tracks the node's own queries, except over UDP under a lease, and marks them for the hairpin: their source may be the
// local address itself, so only a mark distinguishes them on the way out.
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

// ownProber sends the queries of a prober without a netns the way that its sources stand for (D-031). Answers to a probe are not tracked
// either, because conntrack has not seen the query.
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

// ownNAT sends the node's own queries to kube-dns. It depends on the lease alone, but for the prober's.
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

// untranslated sends packets for a Service's address to kube-dns if kube-proxy has no rule for it: the address is no Service's
// after all, or the Service was deleted. While there is a Service, kube-proxy's translation is the fallback and needs nothing
// of neardns, not even the hairpin, which would be missing if rules are saved and restored at boot.
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
