package inspect

import (
	"slices"
	"strings"
)

func checkFirewall(f *facts, r *findings) string {
	r.unreadable(f.acceptErr)
	r.unreadable(f.chainsErr)
	for _, policy := range f.dropping {
		r.fail("use the image with the iptables programs (not slim), or accept udp and tcp port 53 to our addresses there yourself",
			"%s drops packets to our addresses", policy)
	}
	var filters []string
	for _, c := range f.chains {
		known := c.Table == "filter" && c.Name == "INPUT" || c.Table == "kube-proxy" // INPUT is judged by f.dropping
		if c.Input && c.Drops && !known {
			filters = append(filters, c.String())
		}
	}
	slices.Sort(filters)
	others := strings.Join(filters, ", ")
	switch {
	case len(filters) > 0 && f.leasesMissing():
		r.warn("let udp and tcp port 53 from pods to our addresses through",
			"leases are missing, and these chains of other programs may drop: %s", others)
	case len(f.accepted) > 0:
		return "our addresses are accepted under " + strings.Join(texts(f.accepted), ", ")
	case len(filters) > 0:
		return "no rule keeps pods from our addresses; these chains of other programs filter, too: " + others
	}
	return "no rule drops packets to our addresses"
}

func checkKubeProxy(f *facts, r *findings) string {
	switch mode, wanted := f.kubeProxy, f.kubeProxyWanted; {
	case f.chainsErr != nil:
		r.unreadable(f.chainsErr)
	case mode == "none" && wanted == "none":
		return "none, as configured: no pod is steered"
	case mode == "none":
		r.warn("if another program translates Service addresses in this host's netfilter, the fallback check shows it; if eBPF does, "+
			"no pod can be steered: apply install/overlays/transparent, or set kubeProxyMode: none", "no rules of kube-proxy found")
	case wanted != "" && wanted != "auto" && wanted != mode:
		r.warn("set kubeProxyMode to "+mode+", or remove the key", "its rules are %s, the configuration has %s", mode, wanted)
	}
	return "its rules are " + f.kubeProxy
}

func checkKernel(f *facts, r *findings) string {
	for _, s := range f.kernel.noForward {
		r.fail("sysctl -w "+s+"=1", "%s is 0: pods do not reach kube-dns on other nodes", s)
	}
	if f.kernel.bridgePods && f.kernel.bridgeNF == "0" {
		r.warn("sysctl -w net.bridge.bridge-nf-call-iptables=1 (and -ip6tables), as kubeadm asks",
			"pods are connected to a bridge and net.bridge.bridge-nf-call-iptables is 0: if kube-dns runs on this node, its answers bypass "+
				"kube-proxy's way back, so the fallback fails")
	}
	return "forwarding is on"
}

// crowded is the used share of the conntrack table from which on the doctor reports a failure, because new connections may soon fail.
const crowded = 0.95

func checkConntrack(f *facts, r *findings) string {
	used, limit := f.kernel.conntracked, f.kernel.conntrackOf
	switch {
	case limit == 0:
		r.ok("no limit is known")
	case float64(used) >= crowded*float64(limit):
		r.fail("raise net.netfilter.nf_conntrack_max, and find what fills it (conntrack -L); hits need no entry, misses and kube-dns do",
			"%d of %d entries are taken", used, limit)
	default:
		r.ok("%d of %d entries are taken", used, limit)
	}
	return ""
}

func checkNeighbours(f *facts, r *findings) string {
	for _, name := range f.neighbours {
		switch {
		case name == nodeLocalDNS:
			r.warn("take one of the two off the node, or give them different addresses",
				"NodeLocal DNSCache is on this node too (link nodelocaldns or its rules)")
		case name == cilium:
			r.warn("expect bypassed pods or an unverified fallback where it replaces kube-proxy; socketLB.hostNamespaceOnly=true leaves "+
				"pods' packets to netfilter", "Cilium is on this node: its socket load balancer rewrites before any packet exists")
		case name == firewalld && f.leasesMissing():
			r.warn("put the pods' links into a zone that lets udp and tcp port 53 in", "firewalld is on this node, and leases are missing")
		default:
			r.ok("%s is on this node and does not interfere", name)
		}
	}
	if len(r.list) == 0 {
		return "no conflicting program found"
	}
	return ""
}
