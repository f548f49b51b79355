// Package nodecache reads the configuration of NodeLocal DNSCache's node-cache: its flags, its environment and its Corefile template, so
// that the agent can replace it with an unchanged manifest.
//
// It sends no query, changes nothing, and opens no file except those that a Corefile imports. It corrects some values with which node-cache
// would fail or behave unexpectedly.
//
// Failure policy: a function returns a complete result, or an error.
package nodecache

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// Answer has the addresses that follow from the flags and the environment: the upstream for the cluster's names, and the fallback of each
// local address.
type Answer struct {
	Upstream netip.Addr    // for the cluster's names
	Locals   []steer.Local // one for each address of -localip, in the same order
	Notes    []string
}

// kubeDNS is the environment variable with the address of the Service kube-dns, which the kubelet sets in pods of that Service's namespace.
const kubeDNS = "KUBE_DNS_SERVICE_HOST"

// ServiceVariable returns the name of the environment variable in which the kubelet passes a Service's address
// (kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
func ServiceVariable(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}

// Resolve returns the addresses of Answer. lookupEnv is like os.LookupEnv. named is the address to which the Corefile template forwards
// the cluster's names, or the zero Addr.
func (o Options) Resolve(lookupEnv func(string) (string, bool), named netip.Addr) (Answer, error) {
	var a Answer
	variable := ServiceVariable(o.UpstreamService)
	upstream, err := service(lookupEnv, variable)
	if err != nil {
		return a, err
	}
	cluster, err := service(lookupEnv, kubeDNS)
	if err != nil {
		return a, err
	}
	own := func(addr netip.Addr) bool { return slices.Contains(o.LocalIPs, addr) }
	note := func(format string, args ...any) { a.Notes = append(a.Notes, fmt.Sprintf(format, args...)) }
	unset := fmt.Sprintf("-upstreamsvc %s: %s is not set", o.UpstreamService, variable)
	const remedy = "make a second Service for the same pods, such as kube-dns-upstream, in this pod's namespace, and name it with -upstreamsvc"
	switch {
	case upstream.IsValid() && own(upstream):
		return a, fmt.Errorf("-upstreamsvc %s: its address %s is one of -localip, so the agent would query itself: %s", o.UpstreamService,
			upstream, remedy)
	case upstream.IsValid():
	case cluster.IsValid() && !own(cluster):
		upstream = cluster
		note("%s (no such Service in this namespace when the pod started); kube-dns at %s gets the queries", unset, upstream)
	case cluster.IsValid():
		return a, fmt.Errorf("%s, and kube-dns at %s is one of -localip: %s; a Service that is newer than the pod is seen after the pod is "+
			"restarted", unset, cluster, remedy)
	case named.IsValid():
		upstream = named
		note("%s; %s answers if the agent does not, since the template forwards the cluster's names to it", unset, upstream)
	case len(o.Fallback) > 0:
		upstream = o.Fallback[0]
		note("%s; -fallback %s gets the queries", unset, upstream)
	default:
		if variable != kubeDNS {
			unset = fmt.Sprintf("-upstreamsvc %s: neither %s nor %s is set", o.UpstreamService, variable, kubeDNS)
		}
		return a, fmt.Errorf("%s: run the pod in kube-dns's namespace, with enableServiceLinks, or name kube-dns's address with -fallback", unset)
	}
	a.Upstream = upstream
	for i, ip := range o.LocalIPs {
		back, err := o.fallback(ip, upstream, cluster)
		if err != nil {
			return a, err
		}
		a.Locals = append(a.Locals, steer.Local{Address: ip, ClusterDNS: back, Service: o.isService(i, cluster)})
	}
	if err := steer.CheckLocals(a.Locals); err != nil {
		return a, fmt.Errorf("-localip: %w", err)
	}
	return a, nil
}

// fallback returns the address of kube-dns that answers queries to ip if the agent does not.
func (o Options) fallback(ip, upstream, cluster netip.Addr) (netip.Addr, error) {
	for _, candidate := range append(slices.Clone(o.Fallback), upstream, cluster) {
		if candidate.IsValid() && candidate.Is4() == ip.Is4() {
			return candidate, nil
		}
	}
	// The environment has kube-dns's address of only one IP family. For the other family, -localip may have a Service address of
	// kube-dns, which kube-proxy translates before the packet is delivered locally.
	for i, other := range o.LocalIPs {
		if other.Is4() == ip.Is4() && o.isService(i, cluster) {
			return other, nil
		}
	}
	family := "IPv6"
	if ip.Is4() {
		family = "IPv4"
	}
	return netip.Addr{}, fmt.Errorf("-localip %s: without the agent no server would answer there, since only an address of the "+
		"other family is known: name kube-dns's %s address with -fallback",
		ip, family)
}

// isService reports whether the i-th address of -localip is a Service's. The cache's own addresses, unless equal to cluster, are link-local
// IPv4 addresses and the list's first IPv6 address (as in node-cache's manifest).
func (o Options) isService(i int, cluster netip.Addr) bool {
	ip := o.LocalIPs[i]
	if ip == cluster {
		return true
	}
	if ip.Is4() {
		return !ip.IsLinkLocalUnicast()
	}
	return slices.IndexFunc(o.LocalIPs, netip.Addr.Is6) != i
}

func service(lookupEnv func(string) (string, bool), variable string) (netip.Addr, error) {
	text, ok := lookupEnv(variable)
	if !ok || text == "" {
		return netip.Addr{}, nil
	}
	if strings.EqualFold(text, "none") { // the value None comes from the YAML of a headless Service
		return netip.Addr{}, fmt.Errorf("environment variable %s is %q: a Service without an address cannot be queried: give it one",
			variable, text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("environment variable %s is %q, which is not an IP address: correct it, or name another "+
			"Service with -upstreamsvc", variable, text)
	}
	return addr, nil
}

// errPlaceholder means that a flag still has a placeholder of node-cache's manifest.
var errPlaceholder = errors.New("fill it in first, as the instructions of NodeLocal DNSCache do (sed)")
