package testutil

import (
	"fmt"
	"strings"
)

// ipvsSets are the ipsets that kube-proxy's rules name whatever services there are, with their types
// (pkg/proxy/ipvs/proxier.go, ipsetInfo).
func ipvsSets() [][2]string {
	return [][2]string{
		{"LOOP-BACK", "hash:ip,port,ip"}, {"CLUSTER-IP", "hash:ip,port"}, {"EXTERNAL-IP", "hash:ip,port"}, {"EXTERNAL-IP-LOCAL", "hash:ip,port"},
		{"LOAD-BALANCER", "hash:ip,port"}, {"HEALTH-CHECK-NODE-PORT", "bitmap:port"}, {"IPVS-IPS", "hash:ip"},
	}
}

// ipvsSet is a set's name in the kernel.
func ipvsSet(is4 bool, name string) string {
	if is4 {
		return "KUBE-" + name
	}
	return "KUBE-6-" + name
}

// ipvsBase is a shell script with what kube-proxy 1.3x in IPVS mode does whatever services there are: its link, which stays
// down, its sets, and its rules of iptables.
func ipvsBase(is4 bool) string {
	family, cidr, lo, restore := "inet6", podCIDR6, "::1/128", "ip6tables-restore"
	if is4 {
		family, cidr, lo, restore = "inet", podCIDR4, "127.0.0.0/8", "iptables-restore"
	}
	var b strings.Builder
	b.WriteString(`ip link show kube-ipvs0 >/dev/null 2>&1 || ip link add kube-ipvs0 type dummy
for key in conntrack expire_nodest_conn expire_quiescent_template; do echo 1 >/proc/sys/net/ipv4/vs/$key; done
ipset restore -exist <<END
`)
	for _, set := range ipvsSets() {
		if options := "family " + family + " hashsize 1024 maxelem 65536"; set[1] != "bitmap:port" {
			fmt.Fprintf(&b, "create %s %s %s\n", ipvsSet(is4, set[0]), set[1], options)
		} else {
			fmt.Fprintf(&b, "create %s %s range 0-65535\n", ipvsSet(is4, set[0]), set[1])
		}
	}
	b.WriteString("END\n" + restore + " --noflush -w <<END\n")
	rules := strings.NewReplacer("LO ", lo+" ", "CIDR", cidr).Replace(ipvsRules)
	if !is4 {
		rules = strings.ReplaceAll(rules, "--match-set KUBE-", "--match-set KUBE-6-")
	}
	b.WriteString(rules + "END\n")
	return b.String()
}

const ipvsRules = `*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-I INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -s LO -j RETURN
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s CIDR -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
`

// ipvsServices is a shell script that adds services: elements of the sets, virtual servers, and their addresses on the link.
func ipvsServices(is4 bool, services []Service) string {
	var sets, servers, addresses strings.Builder
	bound := map[string]bool{}
	for _, s := range services {
		ip, flag := s.ClusterIP.Addr(), map[string]string{"udp": "-u", "tcp": "-t"}[s.Protocol]
		fmt.Fprintf(&sets, "add %s %s,%s:%d\n", ipvsSet(is4, "CLUSTER-IP"), ip, s.Protocol, s.ClusterIP.Port())
		fmt.Fprintf(&sets, "add %s %s\n", ipvsSet(is4, "IPVS-IPS"), ip)
		fmt.Fprintf(&servers, "-A %s %s -s rr\n", flag, s.ClusterIP)
		for _, e := range s.Endpoints {
			fmt.Fprintf(&sets, "add %s %s,%s:%d,%s\n", ipvsSet(is4, "LOOP-BACK"), e.Addr(), s.Protocol, e.Port(), e.Addr())
			fmt.Fprintf(&servers, "-a %s %s -r %s -m -w 1\n", flag, s.ClusterIP, e)
		}
		if address := Host(ip).String(); !bound[address] {
			bound[address] = true
			fmt.Fprintf(&addresses, "ip address replace %s dev kube-ipvs0\n", address)
		}
	}
	return "ipset restore -exist <<END\n" + sets.String() + "END\nipvsadm -R <<END\n" + servers.String() + "END\n" + addresses.String()
}

// removeIPVS takes away what the scripts made.
func (p *Proxy) removeIPVS() {
	p.t.Helper()
	for _, is4 := range []bool{true, false} {
		if len(ofFamily(p.services, is4)) > 0 {
			p.removeIPTables(is4)
		}
	}
	p.ns.RunInput("ipvsadm -C\nip link delete kube-ipvs0\nfor set in $(ipset list -n); do case $set in KUBE-*) ipset destroy $set;; esac; done\n", p.Loader(true)...)
}
