package inspect

import (
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
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
	r.unreadable(f.chainsErr)
	mode, wanted := f.kubeProxy, f.kubeProxyWanted
	switch {
	case mode == config.KubeProxyNone:
		return "no rules found in nftables, no virtual servers of IPVS: the fallback check shows whether a program translates Service addresses"
	case wanted != "" && wanted != config.KubeProxyAuto && wanted != mode:
		r.warn("set kubeProxyMode to "+mode+", or remove the key", "its rules are %s, the configuration has %s", mode, wanted)
	}
	return "its rules are " + mode
}
