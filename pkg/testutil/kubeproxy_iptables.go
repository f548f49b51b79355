package testutil

import (
	"fmt"
	"strings"
)

// iptablesBase is what kube-proxy 1.3x in iptables mode writes whatever services there are.
const iptablesBase = `*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
`

// iptablesServices adds services before KUBE-SERVICES' last rule, which has to stay the last.
func iptablesServices(is4 bool, services []Service) string {
	var chains, nat, filter strings.Builder
	cidr := podCIDR6
	if is4 {
		cidr = podCIDR4
	}
	for _, s := range services {
		ip := fmt.Sprintf("-m %s -p %s -d %s --dport %d", s.Protocol, s.Protocol, Host(s.ClusterIP.Addr()), s.ClusterIP.Port())
		if len(s.Endpoints) == 0 {
			fmt.Fprintf(&filter, "-A KUBE-SERVICES -m comment --comment \"%s has no endpoints\" %s -j REJECT\n", s, ip)
			continue
		}
		svc := "KUBE-SVC-" + s.chainHash("")
		fmt.Fprintf(&chains, ":%s - [0:0]\n", svc)
		fmt.Fprintf(&nat, "-I KUBE-SERVICES -m comment --comment \"%s cluster IP\" %s -j %s\n", s, ip, svc)
		fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s cluster IP\" %s ! -s %s -j KUBE-MARK-MASQ\n", svc, s, ip, cidr)
		for i, e := range s.Endpoints {
			sep := "KUBE-SEP-" + s.chainHash(e.String())
			chance := ""
			if left := len(s.Endpoints) - i; left > 1 {
				chance = fmt.Sprintf("-m statistic --mode random --probability %0.10f ", 1/float64(left))
			}
			fmt.Fprintf(&chains, ":%s - [0:0]\n", sep)
			fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s -> %s\" %s-j %s\n", svc, s, e, chance, sep)
			fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s\" -s %s -j KUBE-MARK-MASQ\n", sep, s, Host(e.Addr()))
			fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s\" -m %s -p %s -j DNAT --to-destination %s\n", sep, s, s.Protocol, s.Protocol, e)
		}
	}
	return "*filter\n" + filter.String() + "COMMIT\n*nat\n" + chains.String() + nat.String() + "COMMIT\n"
}

// sharing is how many services BulkIPTables puts into one chain.
const sharing = 100

// BulkIPTables returns the text of n further services' rules for iptables-restore: five for each service, as kube-proxy writes,
// but with a hundred services in one chain. iptables 1.8.9 finds a chain by walking all of them, so it takes minutes for 20,000
// services in chains of their own. The kernel has the same work, one transaction of 100,000 rules.
func BulkIPTables(is4 bool, n int) string {
	var chains, nat strings.Builder
	cidr := podCIDR6
	if is4 {
		cidr = podCIDR4
	}
	chain := ""
	for i, s := range ManyServices(is4, n) {
		if i%sharing == 0 {
			chain = "KUBE-SVC-" + s.chainHash("")
			fmt.Fprintf(&chains, ":%s - [0:0]\n", chain)
		}
		ip := fmt.Sprintf("-m %s -p %s -d %s --dport %d", s.Protocol, s.Protocol, Host(s.ClusterIP.Addr()), s.ClusterIP.Port())
		e := s.Endpoints[0]
		fmt.Fprintf(&nat, "-A KUBE-SERVICES -m comment --comment \"%s cluster IP\" %s -j %s\n", s, ip, chain)
		fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s cluster IP\" %s ! -s %s -j KUBE-MARK-MASQ\n", chain, s, ip, cidr)
		fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s -> %s\" %s -j RETURN\n", chain, s, e, ip)
		fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s\" -s %s -j KUBE-MARK-MASQ\n", chain, s, Host(e.Addr()))
		fmt.Fprintf(&nat, "-A %s -m comment --comment \"%s\" %s -j DNAT --to-destination %s\n", chain, s, ip, e)
	}
	return "*nat\n" + chains.String() + nat.String() + "COMMIT\n"
}

// removeIPTables removes kube-proxy's rules and leaves other rules in the same tables.
func (p *Proxy) removeIPTables(is4 bool) {
	p.t.Helper()
	save, restore := "iptables-save", "iptables-restore"
	if !is4 {
		save, restore = "ip6tables-save", "ip6tables-restore"
	}
	var undo strings.Builder
	for _, table := range []string{"filter", "nat"} {
		var rules, flush, chains strings.Builder
		for line := range strings.Lines(p.ns.Run(save, "-t", table)) {
			switch {
			case strings.HasPrefix(line, ":KUBE-"):
				name, _, _ := strings.Cut(line[1:], " ")
				fmt.Fprintf(&flush, "-F %s\n", name)
				fmt.Fprintf(&chains, "-X %s\n", name)
			case strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A KUBE-") && strings.Contains(line, "-j KUBE-"):
				rules.WriteString("-D" + strings.TrimPrefix(line, "-A"))
			}
		}
		fmt.Fprintf(&undo, "*%s\n%s%s%sCOMMIT\n", table, rules.String(), flush.String(), chains.String())
	}
	p.ns.RunInput(undo.String(), restore, "--noflush", "-w")
}
