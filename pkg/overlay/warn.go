package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// Warnings returns effects of the rules on a typical pod that are probably not intended: an ignored level, settings that exceed the
// limits, options that resolvers do not accept. Each has the field and place of its level: v, from which the rules were read, or one of its
// namespaces. A typical pod has the dnsPolicy ClusterFirst, the first of clusterDNS as nameserver and the search list of the cluster
// domain.
func Warnings(v strict.Value, rules Rules, clusterDNS []netip.Addr, domain string) []*strict.Fault {
	node := resolvconf.Node{
		Host:       resolvconf.Settings{Nameservers: []string{"192.0.2.1"}}, // any address
		ClusterDNS: clusterDNS[:min(1, len(clusterDNS))], ClusterDomain: domain, Locals: map[string]string{},
	}
	for _, a := range node.ClusterDNS {
		node.Locals[a.String()] = a.String() // only the number of addresses matters
	}
	const namespace = "default"
	usual := node.Settings(resolvconf.ClusterFirst, namespace)
	var out []*strict.Fault
	seen := map[string]bool{} // a warning about all pods is not repeated for each namespace, nor the list of known options
	add := func(level strict.Value, message string) {
		if seen[message] {
			return
		}
		seen[message] = true
		if known := resolvconf.KnownOptions(); strings.Contains(message, "known to no resolver") && !seen[known] {
			seen[known] = true
			message += "; resolvers know " + known
		}
		out = append(out, &strict.Fault{Place: level.Place, Field: level.Field, Message: message})
	}
	try := func(name string, at strict.Value) {
		w := rules.For(v.Field, name, nil)
		_, applied, ignored := w.Apply(node, nil, namespace, usual)
		for _, i := range ignored {
			add(at, "no pod with the kubelet's settings gets "+i.What+": "+i.Why)
		}
		if slices.ContainsFunc(ignored, func(i podfile.Ignored) bool { return i.What == at.Field }) {
			// The other faults of a refused level: for a pod without nameservers, no level is refused.
			_, bare, _ := w.Apply(node, nil, namespace, resolvconf.Settings{Searches: usual.Searches, Options: usual.Options})
			applied.Notes = append(applied.Notes, bare.Notes...)
		}
		for _, n := range applied.Notes {
			add(at, n.Text)
		}
	}
	try("", v)
	for _, m := range v.Map()[keyNamespaces].Members() {
		try(m.Key, m.Value)
	}
	return out
}
