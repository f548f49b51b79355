// Package nodecache reads what NodeLocal DNSCache's node-cache is told: its flags, its environment and its Corefile template, so
// that the agent can stand in its place with the manifest unchanged.
//
// It is pure: it opens nothing, asks nobody and changes nothing. What in node-cache is a trap is mended here, and said in a note.
//
// Failure policy: Parse and the rest give the whole answer, or an error that names the flag, variable or placeholder and what to
// do.
package nodecache

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// Answer is what follows from flags and environment: whom to ask for the cluster, and who answers for each address when the agent
// does not.
type Answer struct {
	Upstream netip.Addr    // for the cluster's names
	Locals   []steer.Local // one for each of -localip, in its order
	Notes    []string
}

// ConfigMapFiles are the keys of the kube-dns ConfigMap that are read.
func (o Options) ConfigMapFiles() []string {
	return []string{path.Join(o.ConfigMap, "stubDomains"), path.Join(o.ConfigMap, "upstreamNameservers")}
}

// kubeDNS is the variable that the kubelet sets for the Service kube-dns in every pod of its namespace.
const kubeDNS = "KUBE_DNS_SERVICE_HOST"

// ServiceVariable is the environment variable that holds a Service's address, as the kubelet names it
// (kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
func ServiceVariable(service string) string {
	return strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_SERVICE_HOST"
}

// Resolve finds the addresses. lookupEnv is as os.LookupEnv; named is whom the template itself asks for the cluster's names, by
// number, or the zero Addr.
func (o Options) Resolve(lookupEnv func(string) (string, bool), named netip.Addr) (Answer, error) {
	var a Answer
	upstream, err := service(lookupEnv, ServiceVariable(o.UpstreamService))
	if err != nil {
		return a, err
	}
	cluster, err := service(lookupEnv, kubeDNS)
	if err != nil {
		return a, err
	}
	own := func(addr netip.Addr) bool { return slices.Contains(o.LocalIPs, addr) }
	const remedy = "make a second Service for the same pods, such as kube-dns-upstream, in this pod's namespace, and name it with -upstreamsvc"
	switch {
	case upstream.IsValid() && own(upstream):
		return a, fmt.Errorf("-upstreamsvc %s: its address %s is one of -localip, so the agent would ask itself: %s", o.UpstreamService, upstream, remedy)
	case upstream.IsValid():
	case cluster.IsValid() && !own(cluster):
		a.Notes = append(a.Notes, fmt.Sprintf("-upstreamsvc %s: %s is not set (no such Service in this namespace when the pod began); kube-dns at %s is asked instead of <nil>",
			o.UpstreamService, ServiceVariable(o.UpstreamService), cluster))
		upstream = cluster
	case cluster.IsValid():
		return a, fmt.Errorf("-upstreamsvc %s: %s is not set, and kube-dns at %s is one of -localip: %s; a Service that is newer than the pod is seen after the pod is restarted",
			o.UpstreamService, ServiceVariable(o.UpstreamService), cluster, remedy)
	case named.IsValid():
		upstream = named
		a.Notes = append(a.Notes, fmt.Sprintf("-upstreamsvc %s: %s is not set; %s answers when the agent does not, since the template forwards the cluster's names to it",
			o.UpstreamService, ServiceVariable(o.UpstreamService), named))
	case len(o.Fallback) > 0:
		upstream = o.Fallback[0]
		a.Notes = append(a.Notes, fmt.Sprintf("-upstreamsvc %s: %s is not set; -fallback %s is asked", o.UpstreamService, ServiceVariable(o.UpstreamService), upstream))
	default:
		unset := ServiceVariable(o.UpstreamService) + " is not set"
		if variable := ServiceVariable(o.UpstreamService); variable != kubeDNS {
			unset = fmt.Sprintf("neither %s nor %s is set", variable, kubeDNS)
		}
		return a, fmt.Errorf("-upstreamsvc %s: %s: run the pod in kube-dns's namespace, with enableServiceLinks, or name kube-dns's address with -fallback",
			o.UpstreamService, unset)
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

// fallback is who answers at ip when the agent does not.
func (o Options) fallback(ip, upstream, cluster netip.Addr) (netip.Addr, error) {
	for _, candidate := range append(slices.Clone(o.Fallback), upstream, cluster) {
		if candidate.IsValid() && candidate.Is4() == ip.Is4() {
			return candidate, nil
		}
	}
	// The variables tell one family alone. An address of the other that is kube-dns's own is translated by kube-proxy before
	// the node takes it for its own.
	for i, other := range o.LocalIPs {
		if other.Is4() == ip.Is4() && o.isService(i, cluster) {
			return other, nil
		}
	}
	family := "IPv6"
	if ip.Is4() {
		family = "IPv4"
	}
	return netip.Addr{}, fmt.Errorf("-localip %s: nobody would answer there without the agent, since the address of kube-dns is known in the other family alone: name its %s address with -fallback",
		ip, family)
}

// isService tells whether the i-th of -localip is a Service's address. Those of IPv4 that are none are link-local; of IPv6, where
// there is no such rule, the first is the cache's own, as the manifest has it.
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
	if strings.EqualFold(text, "none") { // a headless Service has no variable; somebody may write what its YAML says
		return netip.Addr{}, fmt.Errorf("environment variable %s holds %q: a Service without an address cannot be asked: give it one", variable, text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("environment variable %s holds %q, which is not an IP address: set it right, or name another Service with -upstreamsvc", variable, text)
	}
	return addr, nil
}

// errPlaceholder says that a text still has what the operator was to fill in.
var errPlaceholder = errors.New("fill it in first, as the instructions of NodeLocal DNSCache say (sed)")
