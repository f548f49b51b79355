package testutil

import (
	"fmt"
	"net/netip"
	"strings"
)

func nftFamily(is4 bool) string {
	if is4 {
		return "ip"
	}
	return "ip6"
}

// nftBase is what kube-proxy 1.3x in nftables mode writes whatever services there are; IP stands for ip or ip6.
func nftBase(is4 bool) string {
	family := nftFamily(is4)
	address := "ipv6_addr"
	if is4 {
		address = "ipv4_addr"
	}
	return strings.NewReplacer("IP ", family+" ", "ADDR", address).Replace(`table IP kube-proxy {
	comment "rules for kube-proxy"
	set cluster-ips { type ADDR; comment "Active ClusterIPs"; }
	set nodeport-ips { type ADDR; comment "IPs that accept NodePort traffic"; }
	map firewall-ips { type ADDR . inet_proto . inet_service : verdict; comment "destinations that are subject to LoadBalancerSourceRanges"; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; comment "vmap to drop or reject packets to service nodeports with no endpoints"; }
	map no-endpoint-services { type ADDR . inet_proto . inet_service : verdict; comment "vmap to drop or reject packets to services with no endpoints"; }
	map service-ips { type ADDR . inet_proto . inet_service : verdict; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"; }
	map service-nodeports { type inet_proto . inet_service : verdict; comment "NodePort traffic"; }
	chain cluster-ips-check { IP daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"; }
	chain firewall-check { IP daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain masquerading {
		mark and 0x4000 == 0 return
		mark set mark xor 0x4000
		masquerade fully-random
	}
	chain nodeport-endpoints-check { IP daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain reject-chain { comment "helper for @no-endpoint-services / @no-endpoint-nodeports"; reject; }
	chain service-endpoints-check { IP daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain services {
		IP daddr . meta l4proto . th dport vmap @service-ips
		IP daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
	}
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-output-pre-dnat { type filter hook output priority -110; ct state new jump firewall-check; }
	chain filter-forward {
		type filter hook forward priority 0;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain filter-input {
		type filter hook input priority 0;
		ct state new jump nodeport-endpoints-check
		ct state new jump service-endpoints-check
	}
	chain filter-output {
		type filter hook output priority 0;
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
`)
}

func nftServices(is4 bool, services []Service) string {
	family, cidr := nftFamily(is4), podCIDR6
	if is4 {
		cidr = podCIDR4
	}
	var b strings.Builder
	for _, s := range services {
		key := fmt.Sprintf("%s . %s . %d", s.ClusterIP.Addr(), s.Protocol, s.ClusterIP.Port())
		fmt.Fprintf(&b, "add element %s kube-proxy cluster-ips { %s }\n", family, s.ClusterIP.Addr())
		if len(s.Endpoints) == 0 {
			fmt.Fprintf(&b, "add element %s kube-proxy no-endpoint-services { %s comment \"%s\" : goto reject-chain }\n", family, key, s)
			continue
		}
		chain := "service-" + s.chainName(netip.AddrPort{})
		fmt.Fprintf(&b, "add chain %s kube-proxy %s\n", family, chain)
		var endpoints []string
		for i, e := range s.Endpoints {
			to := "endpoint-" + s.chainName(e)
			fmt.Fprintf(&b, "add chain %s kube-proxy %s\n", family, to)
			fmt.Fprintf(&b, "add rule %s kube-proxy %s %s saddr %s jump mark-for-masquerade\n", family, to, family, e.Addr())
			fmt.Fprintf(&b, "add rule %s kube-proxy %s meta l4proto %s dnat to %s\n", family, to, s.Protocol, e)
			endpoints = append(endpoints, fmt.Sprintf("%d : goto %s", i, to))
		}
		fmt.Fprintf(&b, "add rule %s kube-proxy %s %s daddr %s %s saddr != %s jump mark-for-masquerade\n",
			family, chain, family, s.ClusterIP.Addr(), family, cidr)
		fmt.Fprintf(&b, "add rule %s kube-proxy %s numgen random mod %d vmap { %s }\n",
			family, chain, len(s.Endpoints), strings.Join(endpoints, ", "))
		fmt.Fprintf(&b, "add element %s kube-proxy service-ips { %s : goto %s }\n", family, key, chain)
	}
	return b.String()
}
