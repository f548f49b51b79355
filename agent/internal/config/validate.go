package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/steer"
)

// maxServices is the maximum number of Services in hosts.services.
const maxServices = 20

// Validate checks the configuration, and returns the faults as one joined error.
func (n *Node) Validate() error {
	faults := n.checkAddresses()
	if len(faults) == 0 { // if the agent's own addresses are wrong, checks of upstreams against them would be wrong too
		faults = append(n.checkUpstreams(), n.checkStubDomains()...)
	}
	return errors.Join(slices.Concat(faults, n.checkBounds(), n.checkLease(), n.checkNames())...)
}

// checkAddresses checks the cluster domain, and with the rules of pkg/steer the redirects and local addresses.
func (n *Node) checkAddresses() []error {
	if _, err := configfile.ParseDomain(n.ClusterDomain); err != nil {
		return []error{n.fault("clusterDomain", err.Error())}
	}
	if len(n.Redirects) == 0 {
		return []error{n.fault("redirects", "names no cluster DNS address: write the address of the Service kube-dns, or take the key out "+
			"to have it detected")}
	}
	complete, err := steer.Complete(n.Redirects)
	if err != nil {
		return []error{n.placed(err)}
	}
	var faults []error
	if _, err := steer.Locals(n.LocalAddresses, complete); err != nil {
		faults = append(faults, n.placed(err))
	}
	for i, a := range n.LocalAddresses {
		if slices.Contains([]netip.Addr{steer.ProbeSource4, steer.FallbackCheckSource4, steer.ProbeSource6, steer.FallbackCheckSource6}, a) {
			faults = append(faults, n.fault(fmt.Sprintf("localAddresses[%d]", i), fmt.Sprintf("%s is the prober's own address: choose another", a)))
		}
	}
	return faults
}

// placed adds the position in the file to an error of pkg/steer, which starts with the field's name, and a remedy if it has none.
func (n *Node) placed(err error) error {
	field, message, ok := strings.Cut(err.Error(), ": ")
	if !ok {
		return n.fault("", err.Error())
	}
	if !strings.Contains(message, ": ") {
		message += ": write another address, or take it out"
	}
	return n.fault(field, message)
}

func (n *Node) checkUpstreams() []error {
	var faults []error
	add := func(field, format string, args ...any) {
		faults = append(faults, n.fault(field, fmt.Sprintf(format, args...)))
	}
	const second = "name the address of a second Service for the same pods, such as kube-dns-upstream"
	switch {
	case len(n.Upstreams.Cluster) == 0: // an empty upstreams.external is no fault: the cluster's servers then get its queries too
		add("upstreams.cluster", "names no server: name one, or take the key out to query the cluster DNS addresses")
	case n.Link.ClusterDNSOnLink && !n.IsSet("upstreams.cluster"):
		add("link.clusterDNSOnLink", "true makes the cluster DNS address this node's own: set upstreams.cluster too and %s", second)
	case n.InterceptNode && !n.IsSet("upstreams.cluster"):
		add("interceptNode", "true would catch the agent's own queries to the cluster DNS address: set upstreams.cluster too and %s", second)
	default:
		for i, a := range n.Upstreams.Cluster {
			field, isClusterDNS := fmt.Sprintf("upstreams.cluster[%d]", i), slices.Contains(n.ClusterDNS(), a.Addr.Addr())
			if n.InterceptNode && isClusterDNS {
				add(field, "%s is a cluster DNS address, and with interceptNode: true the agent's own queries to it would be caught: %s",
					a.Addr.Addr(), second)
				continue
			}
			if n.Link.ClusterDNSOnLink && isClusterDNS {
				add(field, "%s is a cluster DNS address, and with link.clusterDNSOnLink: true it is this node's own: %s", a.Addr.Addr(), second)
				continue
			}
			faults = append(faults, n.checkLoop(field, a)...)
		}
	}
	for i, e := range n.Upstreams.External {
		if e.Path == "" {
			faults = append(faults, n.checkLoop(fmt.Sprintf("upstreams.external[%d]", i), e.Address)...)
		}
	}
	if count := len(n.Upstreams.Cluster); count > nameserver.MaxServers {
		add("upstreams.cluster", "names %d servers: keep at most %d", count, nameserver.MaxServers)
	}
	if count := len(n.Upstreams.External); count > nameserver.MaxServers {
		add("upstreams.external", "names %d servers: keep at most %d", count, nameserver.MaxServers)
	}
	return faults
}

// checkLoop returns a fault if queries to an upstream would come back to the agent.
func (n *Node) checkLoop(field string, a nameserver.Address) []error {
	if err := a.Refuse(n.Own()); err != nil {
		return []error{n.fault(field, err.Error())}
	}
	return nil
}

func (n *Node) checkStubDomains() []error {
	var faults []error
	for _, domain := range sortedKeys(n.StubDomains) {
		field := fmt.Sprintf("stubDomains[%s]", domain)
		servers := n.StubDomains[domain]
		switch {
		case domain == n.ClusterDomain, domain == "in-addr.arpa", domain == "ip6.arpa":
			faults = append(faults, n.fault(field, "belongs to the cluster: name its servers in upstreams.cluster"))
		case len(servers) == 0:
			faults = append(faults, n.fault(field, "names no server: name one or take the domain out"))
		case len(servers) > nameserver.MaxServers:
			faults = append(faults, n.fault(field, fmt.Sprintf("names %d servers: keep at most %d", len(servers), nameserver.MaxServers)))
		}
		for i, a := range servers {
			faults = append(faults, n.checkLoop(fmt.Sprintf("%s[%d]", field, i), a)...)
		}
	}
	return faults
}

// checkBounds checks that each number is within a wide range of sensible values; a number beyond it is probably a typo. It checks each
// field by itself, so it also works if other fields of the Node could not be read.
func (n *Node) checkBounds() []error {
	var faults []error
	for _, f := range table() {
		if f.check == nil {
			continue
		}
		if message := f.check(n); message != "" {
			faults = append(faults, n.fault(f.name, message))
		}
	}
	if n.Cache.NegativeTTL%time.Second != 0 {
		faults = append(faults, n.fault("cache.negativeTTL", fmt.Sprintf("is %s: write whole seconds, as DNS counts in them",
			n.Cache.NegativeTTL)))
	}
	return faults
}

func (n *Node) checkLease() []error {
	least := 3 * n.Lease.Renew
	if n.Lease.Lifetime >= least {
		return nil
	}
	return []error{n.fault("lease.lifetime", fmt.Sprintf("is %s, less than three times lease.renew (%s): one lost probe must not end a "+
		"lease: write at least %s, or a shorter lease.renew",
		showDuration(n.Lease.Lifetime), showDuration(n.Lease.Renew), showDuration(least)))}
}

// checkNames checks the names of things on the node, and keys that exclude each other.
func (n *Node) checkNames() []error {
	const instead = "arrangement: transparent changes nothing but hits: take one of the two out"
	onLink, alone := n.Link.ClusterDNSOnLink, n.KernelAlone()
	var faults []error
	for _, f := range []struct {
		found          bool
		field, message string
	}{
		{n.Link.Name == "lo" || strings.HasPrefix(n.Link.Name, steer.ProberInterface), "link.name",
			n.Link.Name + " has another use: name a link of its own for the agent's addresses, such as neardns0"},
		{onLink && n.InterceptNode, "interceptNode",
			"link.clusterDNSOnLink: true catches what is for the cluster DNS address already: take one of the two out"},
		{onLink && n.KubeProxyMode == KubeProxyIPVS, "link.clusterDNSOnLink",
			"kube-proxy in IPVS mode has the address on a link of its own, and translates packets to it in any case: take it out; " +
				"pods are steered without it"},
		{n.InterceptNode && strings.HasPrefix(n.Backend, BackendIptables), "interceptNode",
			"the iptables back end has no such rules: take it out, or write backend: nftables (and run cleanup on nodes with steered pods)"},
		{len(n.ResolvConf.Paths) == 0, "resolvConf.paths", "names no path: name one, or write mode: off"},
		{(n.KernelHits.Mode == KernelHitsOn || n.KernelHits.Mode == KernelHitsNamespaces) && n.FastPath == FastPathOff, "kernelHits.mode",
			"the kernel gets the answers of the fast path: write fastPath: \"on\", or mode: \"off\""},
		{alone && len(n.LocalAddresses) > 0, "localAddresses", instead},
		{alone && n.InterceptNode, "interceptNode", instead},
		{alone && onLink, "link.clusterDNSOnLink", instead},
		{alone && n.AdoptPods, "adoptPods", instead},
		{(alone || onLink) && n.Steer.Mode != SteerAll, "steer.mode",
			"has no effect without rules in pods (arrangement: transparent, link.clusterDNSOnLink): take it out; " +
				"with transparent, kernelHits.mode selects pods"},
		{n.InterceptNode && (n.Steer.Mode == SteerNamespaces || n.Steer.Mode == SteerAnnotated), "steer.mode",
			"interceptNode catches the queries of every pod: take it out, or write mode: all or none"},
		{len(n.Steer.Namespaces) > 0 && n.Steer.Mode != SteerNamespaces, "steer.namespaces",
			fmt.Sprintf("has no effect with mode: %s: take it out, or write mode: %s", n.Steer.Mode, SteerNamespaces)},
		{len(n.KernelHits.Namespaces) > 0 && n.KernelHits.Mode != KernelHitsNamespaces, "kernelHits.namespaces",
			fmt.Sprintf("has no effect with mode: %q: take it out, or write mode: %s", n.KernelHits.Mode, KernelHitsNamespaces)},
		{n.StateDir == n.PersistDir, "persistDir",
			"is the same folder as stateDir: stateDir must be gone after a reboot, persistDir must not: name two"},
		{n.Listen.Metrics.IsValid() && n.Listen.Metrics == n.Listen.Health, "listen.health",
			n.Listen.Health.String() + " is taken by listen.metrics: give each a port of its own"},
		{n.Corefile != "" && len(n.Snippets) > 0, "snippets",
			"would have no effect, since corefile replaces the whole text: put the lines into " + n.Corefile + ", or take one of the two keys out"},
	} {
		if f.found {
			faults = append(faults, n.fault(f.field, f.message))
		}
	}
	for _, zone := range sortedKeys(n.Snippets) {
		if strings.TrimSpace(n.Snippets[zone]) == "" {
			faults = append(faults, n.fault("snippets["+zone+"]", "has no line: write some or take the zone out"))
		}
	}
	return slices.Concat(faults, n.checkServices(), n.checkTwice("kernelHits.namespaces", n.KernelHits.Namespaces),
		n.checkTwice("steer.namespaces", n.Steer.Namespaces))
}

func (n *Node) checkServices() []error {
	faults := n.checkTwice("hosts.services", n.Hosts.Services)
	if count := len(n.Hosts.Services); count > maxServices {
		faults = append(faults, n.fault("hosts.services",
			fmt.Sprintf("names %d Services: keep at most %d; every program of the node reads the lines at each lookup", count, maxServices)))
	}
	for i, s := range n.Hosts.Services {
		if longest := len(s) + len(".svc.") + len(n.ClusterDomain); longest > 253 { // RFC 1035, section 2.3.4
			faults = append(faults, n.fault(fmt.Sprintf("hosts.services[%d]", i),
				fmt.Sprintf("its name with the cluster domain has %d characters, of at most 253: take it out", longest)))
		}
	}
	return faults
}

// checkTwice returns a fault for each text that is in a list twice.
func (n *Node) checkTwice(field string, list []string) (faults []error) {
	for i, s := range list {
		if slices.Index(list, s) < i {
			faults = append(faults, n.fault(fmt.Sprintf("%s[%d]", field, i), s+" is listed twice: keep one"))
		}
	}
	return faults
}
