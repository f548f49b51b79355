package iptables

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// Names of neardns's chains. NODE-LOCAL-DNS is also the fallback chain's name in KEP-1024 (NodeLocal DNSCache).
const (
	preroutingChain  = "NEARDNS-PREROUTING"
	udpChain         = "NEARDNS-UDP"
	tcpChain         = "NEARDNS-TCP"
	onLinkChain      = "NEARDNS-ON-LINK"
	deliverChain     = "NEARDNS-DELIVER"
	rawOutputChain   = "NEARDNS-RAW-OUTPUT"
	fallbackChain    = "NODE-LOCAL-DNS"
	giveBackChain    = "NEARDNS-GIVE-BACK"
	untranslated     = "NEARDNS-UNTRANSLATED"
	postroutingChain = "NEARDNS-POSTROUTING"
	inputChain       = "NEARDNS-IN"
	outputChain      = "NEARDNS-OUT"
	forwardChain     = "NEARDNS-FORWARD"
	ownChain         = "NEARDNS-OWN" // tables raw and nat both have a chain of this name
	podChain         = "NEARDNS-POD"
	turnChain        = "NEARDNS-TURN"
)

// ownChains lists all chains of this back end, by table.
func ownChains() map[string][]string {
	return map[string][]string{
		"raw":    {preroutingChain, udpChain, tcpChain, onLinkChain, deliverChain, rawOutputChain, ownChain},
		"nat":    {fallbackChain, giveBackChain, untranslated, postroutingChain, ownChain, podChain},
		"filter": {inputChain, outputChain, forwardChain},
		"mangle": {turnChain},
	}
}

// tableOrder is the order in which tables are written: first the rules that accept packets, then those that send them to
// kube-dns, then those that deliver them to the agent. They are removed in reverse order.
func tableOrder() []string { return []string{"filter", "mangle", "nat", "raw"} }

// list returns the name of the xt_recent list that has the leases of a protocol. Each IP family has its own list, because a
// list has one network mask, which the first rule sets.
func list(p steer.Protocol, is4 bool) string {
	if is4 {
		return "neardns_" + p.String() + "4"
	}
	return "neardns_" + p.String() + "6"
}

// leaseSeconds returns a lease's lifetime in seconds, rounded up, because `-m recent --seconds` counts whole seconds.
func leaseSeconds(lifetime time.Duration) int {
	if lifetime <= 0 {
		lifetime = steer.DefaultLifetime
	}
	return int((lifetime + time.Second - 1) / time.Second)
}

// pair has a steering or local address, and the cluster DNS address to which the fallback rewrites it.
type pair struct {
	address, clusterDNS netip.Addr
	service             bool // see steer.Local.Service
}

// host is the part of a steer.Host that concerns one IP family.
type host struct {
	is4      bool
	served   []pair       // addresses that may have a lease
	fallback []pair       // addresses that never have a lease, so their packets go to kube-dns
	onLink   []netip.Addr // local addresses that are their own fallback, because kube-proxy translates them; see onLinkChain
	exempt   []netip.Addr
	uplinks  []string
	bridges  []string
	seconds  int // how long a lease lasts, in seconds
	// whether to check that a source address is routed by the link that its packets came in on: true if the kernel can do it
	// (see Iptables.routes) and there are no detours
	routes bool
	own    bool // whether queries of the node's own processes are handled, too; see own.go
	ceded  []netip.Addr
	locals []netip.Addr
	health uint16 // see steer.Host.HealthPort
}

func hostOf(h steer.Host, is4 bool) host {
	h = h.OfFamily(is4)
	bridges := slices.DeleteFunc(slices.Clone(h.Bridges), func(b string) bool { return slices.Contains(h.Uplinks, b) })
	out := host{is4: is4, uplinks: links(h.Uplinks), bridges: links(bridges), seconds: leaseSeconds(h.Lifetime), own: h.OwnLocals,
		health: h.HealthPort, served: pairsOf(h.Redirects), fallback: pairsOf(h.FallbackOnly), exempt: h.Exempt, ceded: h.Ceded}
	for _, l := range h.Locals {
		out.locals = append(out.locals, l.Address)
		if l.Address == l.ClusterDNS {
			out.onLink = append(out.onLink, l.Address)
		} else {
			out.served = append(out.served, pair{l.Address, l.ClusterDNS, l.Service})
		}
	}
	for _, pairs := range [][]pair{out.served, out.fallback} {
		slices.SortFunc(pairs, func(a, b pair) int { return a.address.Compare(b.address) })
	}
	return out
}

func pairsOf(redirects []steer.Redirect) (out []pair) {
	for _, r := range redirects {
		out = append(out, pair{address: r.Steering, clusterDNS: r.ClusterDNS})
	}
	return out
}

// links returns interface names in iptables-restore's syntax, sorted. The kernel allows nearly any character in a name. links
// leaves out a name that ends in "+": iptables would match every name that begins alike, which may be pods' links. To serve
// clients of another host is better than to cut off pods (D-044).
func links(names []string) []string {
	var out []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		switch {
		case strings.HasSuffix(name, "+"):
		case strings.ContainsAny(name, "\"'\\#"):
			out = append(out, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name)+`"`)
		default:
			out = append(out, name)
		}
	}
	return out
}

// hosts returns the host's rules: one script for each IP family that has a steering or local address.
func hosts(h steer.Host, routes bool) []script {
	var out []script
	for _, is4 := range []bool{true, false} {
		f := hostOf(h, is4)
		f.routes = routes && len(h.Detours) == 0
		if len(f.served)+len(f.fallback)+len(f.onLink) > 0 {
			out = append(out, f.render())
		}
	}
	return out
}

func (h host) render() script {
	return script{is4: h.is4, chains: slices.Concat(h.filter(), []chain{returnToHairpin()}, h.nat(), h.raw())} // in tableOrder
}

func cidr(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// toPort53 matches queries to an address; fromPort53 matches answers from it.
func toPort53(a netip.Addr, proto string) string {
	return fmt.Sprintf("-d %s -p %s -m %s --dport 53", cidr(a), proto, proto)
}

func fromPort53(a netip.Addr, proto string) string {
	return fmt.Sprintf("-s %s -p %s -m %s --sport 53", cidr(a), proto, proto)
}

func comment(text string) string { return "-m comment --comment " + stampPrefix + text }

// syn matches a TCP packet that opens a connection.
const syn = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN"

// lease matches packets that may go to the agent: their destination has a lease, and a socket is bound to exactly that address
// (--nowildcard is absent, so a socket bound to all addresses does not match).
func (h host) lease(p steer.Protocol) string { return h.leaseAlone(p) + " -m socket" }

// leaseAlone matches packets whose destination has a lease. For packets of the node itself there is no match on a socket,
// because it would find the sender's own.
func (h host) leaseAlone(p steer.Protocol) string {
	return fmt.Sprintf("-m recent --rcheck --seconds %d --name %s --rdest", h.seconds, list(p, h.is4))
}

func (h host) probe(source netip.Addr) string {
	return fmt.Sprintf("-s %s -i %s", cidr(source), steer.ProberInterface)
}

// raw returns the chains in table raw. For UDP, and in onLinkChain for TCP too, they decide between the agent and kube-dns, before
// connection tracking: packets for a socket of the node are not tracked, all others go on to table nat.
func (h host) raw() []chain {
	from := []jump{{base: "PREROUTING", before: h.untracked()}}
	pre := chain{table: "raw", name: preroutingChain, from: from, rules: []string{"-i lo -j RETURN"}}
	if h.own {
		pre.rules = append(pre.rules, "-i "+steer.HairpinIn+" "+ownMark()+" -j MARK --set-mark 0x0")
	}
	for _, a := range h.exempt {
		for _, on := range h.onLink {
			pre.rules = append(pre.rules, fmt.Sprintf("-s %s -d %s -j RETURN", cidr(a), cidr(on)))
		}
	}
	for _, p := range slices.Concat(h.served, h.fallback) {
		pre.rules = append(pre.rules, toPort53(p.address, "udp")+" -j "+udpChain, toPort53(p.address, "tcp")+" -j "+tcpChain)
	}
	for _, a := range h.onLink {
		pre.rules = append(pre.rules, toPort53(a, "udp")+" -j "+onLinkChain, toPort53(a, "tcp")+" -j "+onLinkChain)
	}
	guard := h.skipUplinkServices("ACCEPT")
	for _, u := range h.uplinks {
		guard = append(guard, "-i "+u+" "+comment(steer.CounterUplink)+" -j "+h.tracked()) // to kube-dns, never to the cache
	}
	guard = append(guard, h.probe(steer.FallbackCheckSource(h.is4))+" -j "+h.tracked())
	udp := chain{table: "raw", name: udpChain, rules: slices.Concat(guard, []string{
		h.probe(steer.ProbeSource(h.is4)) + " -m socket " + comment(steer.CounterProbe) + " -g " + deliverChain,
	}, h.strangers(), []string{
		h.lease(steer.UDP) + " " + comment(steer.CounterDeliveredUDP) + " -g " + deliverChain,
	}, h.toCeded("udp", comment(steer.CounterFallbackUDP)+" -j ACCEPT", "-g "+deliverChain), []string{
		comment(steer.CounterFallbackUDP) + " -j " + h.tracked(),
	})}
	// For TCP the chains in nat decide, and connection tracking keeps the decision. Here are only guards and counters.
	tcp := chain{table: "raw", name: tcpChain, rules: slices.Concat(guard, []string{
		h.probe(steer.ProbeSource(h.is4)) + " -j " + h.tracked(),
		syn + " " + h.lease(steer.TCP) + " " + comment(steer.CounterDeliveredTCP) + " -j " + h.tracked(),
		syn + " " + comment(steer.CounterFallbackTCP) + " -j " + h.tracked(),
	})}
	if h.own {
		tcp.rules = append(tcp.rules, "-j "+h.tracked())
	}
	deliver := chain{table: "raw", name: deliverChain, rules: []string{"-j CT --notrack"}}
	chains := append([]chain{deliver, udp, tcp}, h.ownRaw()...)
	if len(h.onLink) > 0 {
		chains = append(chains, h.onLinkChain())
	}
	return append(chains, pre, h.rawOutput())
}

// strangers matches packets whose source address is not routed by the link they came in on, for example of a pod that uses
// another pod's address. They go to kube-dns. TCP needs no such rule, because a handshake with a false source address never
// completes.
func (h host) strangers() []string {
	if !h.routes {
		return nil
	}
	return []string{"-m rpfilter --invert " + comment(steer.CounterStranger) + " -j " + h.tracked()}
}

// uplinksToKubeDNS returns rules that send packets from outside the node to kube-dns. They matter only for TCP, because table raw has
// already decided about UDP.
func (h host) uplinksToKubeDNS() []string {
	var rules []string
	for _, u := range h.uplinks {
		rules = append(rules, "-i "+u+" -g "+giveBackChain)
	}
	return rules
}

// onLinkChain makes the rules for a cluster DNS address that is on the agent's link and that kube-proxy translates too, as in
// KEP-1024. Under a lease, a packet goes untracked, so kube-proxy does not translate it and it reaches the agent. TCP packets
// are decided one by one too, so an open connection to kube-dns is cut when a lease begins.
func (h host) onLinkChain() chain {
	c := chain{table: "raw", name: onLinkChain}
	for _, u := range h.uplinks {
		c.rules = append(c.rules, "-i "+u+" -j RETURN") // packets from outside the node go to kube-proxy, as without neardns
	}
	c.rules = append(c.rules, h.probe(steer.FallbackCheckSource(h.is4))+" -j RETURN",
		h.probe(steer.ProbeSource(h.is4))+" -m socket "+comment(steer.CounterProbe)+" -g "+deliverChain)
	for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
		c.rules = append(c.rules, "-p "+p.String()+" "+h.lease(p)+" -g "+deliverChain)
	}
	for _, proto := range []string{"udp", "tcp"} {
		c.rules = append(c.rules, h.toCeded(proto, "-j ACCEPT", "-g "+deliverChain)...)
	}
	if h.own {
		c.rules = append(c.rules, "-j "+h.tracked())
	}
	return c
}

// rawOutput returns the chain for packets of the node itself. It applies the agent's lease datagrams, keeps the agent's answers to
// untracked queries out of connection tracking, and has rules for queries of the node's own processes.
func (h host) rawOutput() chain {
	c := chain{table: "raw", name: rawOutputChain, from: []jump{{base: "OUTPUT", before: h.untracked()}}}
	for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
		renew, withdraw := steer.LeasePorts(p)
		to := func(port int) string {
			return fmt.Sprintf("-p udp -m udp --dport %d -m mark --mark %#x", port, steer.Mark)
		}
		c.rules = append(c.rules,
			to(renew)+" -m recent --set --name "+list(p, h.is4)+" --rdest -j DROP",
			to(withdraw)+" -m recent --remove --name "+list(p, h.is4)+" --rdest",
			to(withdraw)+" -j DROP")
	}
	c.rules = append(c.rules, h.ownProber()...)
	for _, p := range h.served {
		c.rules = append(c.rules, fromPort53(p.address, "udp")+" -j CT --notrack")
		if h.own {
			c.rules = append(c.rules, fromPort53(p.address, "tcp")+" -j ACCEPT",
				toPort53(p.address, "udp")+" -j "+ownChain, toPort53(p.address, "tcp")+" -j "+ownChain)
		}
	}
	for _, a := range h.onLink {
		// The rules for queries are for the node's own processes. They exclude queries with the agent's mark, which must reach
		// kube-dns.
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			c.rules = append(c.rules,
				fmt.Sprintf("%s -m mark ! --mark %#x -m recent --rcheck --seconds %d --name %s --rdest -j CT --notrack",
					toPort53(a, p.String()), steer.Mark, h.seconds, list(p, h.is4)),
				fromPort53(a, p.String())+" -j CT --notrack")
			if h.own {
				c.rules = append(c.rules, toPort53(a, p.String())+" -j ACCEPT")
			}
		}
	}
	c.rules = append(c.rules, h.healthProbes()...)
	return c
}

// nat returns the chains in table nat: they rewrite packets for kube-dns to the cluster DNS address, and decide whether the
// agent or kube-dns gets a TCP connection. A connection passes nat only once, so kube-proxy translates the cluster DNS address
// only when the packet comes out of the hairpin, as a second connection.
func (h host) nat() []chain {
	back := chain{table: "nat", name: giveBackChain}
	for _, p := range slices.Concat(h.served, h.fallback) {
		if !p.service {
			back.rules = append(back.rules, p.toKubeDNS()...)
		}
	}
	choose := chain{table: "nat", name: fallbackChain, from: []jump{{base: "PREROUTING", before: h.translated()}}}
	choose.rules = slices.Concat([]string{
		"-i lo -j RETURN",
	}, h.skipUplinkServices("RETURN"), []string{
		h.probe(steer.FallbackCheckSource(h.is4)) + " -g " + giveBackChain,
		h.probe(steer.ProbeSource(h.is4)) + " -p tcp -m socket -j " + h.tracked(),
	}, h.uplinksToKubeDNS(), []string{
		"-p tcp -m tcp --dport 53 " + h.lease(steer.TCP) + " -j " + h.tracked(),
	}, h.toCeded("tcp", "-g "+giveBackChain, "-j ACCEPT"), []string{
		"-g " + giveBackChain,
	})
	// Keep a pod's source address in the hairpin. If all pods had the same one, they would share its ports, and one pod could
	// use them up.
	post := chain{table: "nat", name: postroutingChain, from: []jump{{base: "POSTROUTING"}}}
	if h.own {
		post.rules = append(post.rules, "-o "+steer.HairpinOut+" "+ownMark()+" -j SNAT --to-source "+steer.HairpinSource(h.is4).String())
	}
	post.rules = append(post.rules, "-o "+steer.HairpinOut+" -j ACCEPT")
	if h.own {
		post.rules = append(post.rules, "-s "+cidr(steer.HairpinSource(h.is4))+" ! -o "+steer.HairpinIn+" -j MASQUERADE")
		for _, p := range h.served {
			post.rules = append(post.rules, "-s "+cidr(p.address)+" ! -o lo -j MASQUERADE")
		}
	}
	for _, s := range []netip.Addr{steer.ProbeSource(h.is4), steer.FallbackCheckSource(h.is4)} {
		post.rules = append(post.rules, "-s "+cidr(s)+" ! -o "+steer.ProberInterface+" -j MASQUERADE")
	}
	// If kube-dns's pod and the client's pod are on one bridge, the answer would go there directly, without routing, and miss
	// the hairpin. With a source address that is not on the bridge, it comes to the host. With --persistent each pod always
	// gets the same address.
	first, last := steer.HairpinSources(h.is4)
	for _, b := range h.bridges {
		post.rules = append(post.rules, fmt.Sprintf("-o %s -m connmark --mark %#x/%#x -j SNAT --to-source %s-%s --persistent",
			b, steer.AnswerMark, steer.MarkMask, first, last))
	}
	for _, a := range h.onLink {
		// When kube-proxy has translated a packet that the node sent to this address, the packet still has the address as its
		// source, so kube-dns could not answer it.
		post.rules = append(post.rules, "-s "+cidr(a)+" ! -o lo -j MASQUERADE")
	}
	return slices.Concat([]chain{back, choose, post}, h.ownNAT(), h.untranslated())
}

// returnToHairpin returns the chain that marks kube-dns's answers to queries that came through the hairpin, so that routing
// sends them back into it. Their destination is the pod, which they would otherwise reach from the wrong source address. The
// chain is after connection tracking and before routing.
func returnToHairpin() chain {
	mark := fmt.Sprintf("%#x/%#x", steer.AnswerMark, steer.MarkMask)
	return chain{table: "mangle", name: turnChain, from: []jump{{base: "PREROUTING"}}, rules: []string{
		"-i " + steer.HairpinOut + fmt.Sprintf(" -j MARK --set-xmark 0x0/%#x", steer.MarkMask),
		"-i " + steer.HairpinOut + " -j RETURN",
		"-i " + steer.HairpinIn + " -m conntrack --ctdir ORIGINAL -j CONNMARK --set-xmark " + mark,
		"-m connmark --mark " + mark + " -m conntrack --ctdir REPLY -j MARK --set-xmark " + mark,
	}}
}

// toKubeDNS returns the rules that rewrite p's address to its cluster DNS address.
func (p pair) toKubeDNS() []string {
	to := " -j DNAT --to-destination " + netip.AddrPortFrom(p.clusterDNS, 53).String()
	return []string{toPort53(p.address, "udp") + to, toPort53(p.address, "tcp") + to}
}

// leasable lists the addresses that may have a lease.
func (h host) leasable() []netip.Addr {
	out := slices.Clone(h.onLink)
	for _, p := range h.served {
		out = append(out, p.address)
	}
	return out
}

// filter returns the chains that accept queries, answers and the hairpin's packets, for hosts whose filter policy is DROP.
func (h host) filter() []chain {
	in := chain{table: "filter", name: inputChain, from: []jump{{base: "INPUT"}}}
	out := chain{table: "filter", name: outputChain, from: []jump{{base: "OUTPUT"}}}
	for _, a := range h.leasable() {
		for _, proto := range []string{"udp", "tcp"} {
			in.rules = append(in.rules, toPort53(a, proto)+" -j ACCEPT")
			out.rules = append(out.rules, fromPort53(a, proto)+" -j ACCEPT")
		}
	}
	if h.own {
		in.rules = append(in.rules, "-i "+steer.HairpinOut+" -j ACCEPT")
		out.rules = append(out.rules, "-o "+steer.HairpinOut+" -j ACCEPT")
	}
	forward := chain{table: "filter", name: forwardChain, from: []jump{{base: "FORWARD"}}}
	for _, link := range []string{steer.HairpinOut, steer.HairpinIn} {
		forward.rules = append(forward.rules, "-o "+link+" -j ACCEPT", "-i "+link+" -j ACCEPT")
	}
	return []chain{in, out, forward}
}

// pods returns a pod's rules. They are last in their base chains, so that a service mesh that captures DNS there takes
// precedence.
func pods(p steer.Pod) []script {
	var out []script
	for _, is4 := range []bool{true, false} {
		c := chain{table: "nat", name: podChain, from: []jump{{base: "OUTPUT", last: true}, {base: "PREROUTING", last: true}}}
		redirects := pairsOf(steer.OfFamily(p.Redirects, is4))
		slices.SortFunc(redirects, func(a, b pair) int { return a.clusterDNS.Compare(b.clusterDNS) })
		for _, r := range redirects {
			to := " -j DNAT --to-destination " + netip.AddrPortFrom(r.address, 53).String()
			// Rewrite only the SYN, so that a connection that was open before stays with kube-dns.
			c.rules = append(c.rules, toPort53(r.clusterDNS, "udp")+to, "-d "+cidr(r.clusterDNS)+" "+syn+" --dport 53"+to)
		}
		if len(c.rules) > 0 {
			out = append(out, script{is4: is4, chains: []chain{c}})
		}
	}
	return out
}

// counters adds the packets and bytes of counting rules to into, by the counter's name in the rule's comment. It skips a chain's stamp (see
// chain.stamp), whose comment has a hex digest in place of a name. text is the output of iptables -v -S.
func counters(text string, into map[string]steer.Counter) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		name := ""
		var c steer.Counter
		for i, w := range words {
			w = strings.Trim(w, `"`)
			if rest, ok := strings.CutPrefix(w, stampPrefix); ok && i > 0 && words[i-1] == "--comment" {
				name = rest
			}
			if w == "-c" && i+2 < len(words) {
				c.Packets, _ = strconv.ParseUint(words[i+1], 10, 64) // 0 if a program prints something else
				c.Bytes, _ = strconv.ParseUint(words[i+2], 10, 64)
			}
		}
		if _, err := hex.DecodeString(name); err != nil {
			sum := into[name]
			into[name] = steer.Counter{Packets: sum.Packets + c.Packets, Bytes: sum.Bytes + c.Bytes}
		}
	}
}
