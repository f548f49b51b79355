package resolvconf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Node has the settings of a node that determine its pods' DNS settings.
type Node struct {
	// Host has the settings of the node's resolv.conf, from File.Host. It is nil if the kubelet is configured to use no file
	// (resolvConf: "").
	Host          *Settings
	ClusterDNS    []netip.Addr // the cluster DNS addresses, in the order in which pods get them
	ClusterDomain string       // if it is "", a pod with the policy ClusterFirst gets the node's search list
	// Addresses are the node's IP addresses. They are used only if Host is nil: for each of them, a pod with the policy Default
	// then gets the loopback address of the same family as nameserver.
	Addresses []netip.Addr
	// Locals maps a cluster DNS address to the node's local address that a pod may use instead. It has the form of Overlay.Instead.
	Locals map[string]string
}

// Pod is the DNS part of a pod's specification. A caller that knows only the settings that the kubelet passed to the runtime (CNI's
// dns capability) puts them into Config, with policy None. The kubelet has merged these settings already, so they stay as they are.
type Pod struct {
	Policy      Policy
	HostNetwork bool
	Namespace   string
	Config      *Settings // the pod's dnsConfig, nil if it has none; an empty one still makes the kubelet remove duplicates
}

// Result has a pod's settings, whether an overlay was applied, and notes about the settings.
type Result struct {
	Settings
	Overlaid bool // whether the overlay is in the settings; if not, they are the kubelet's
	// Refused is the reason why Form dropped the overlay (the wanted change to the pod's settings). It is nil if Form applied it or got
	// none.
	Refused error
	// Notes are remarks about the resulting settings. Remarks that the kubelet makes too come first.
	Notes []Note
}

// Form computes a pod's settings. It first does what the kubelet does, from the pod's policy and dnsConfig and within the limits of
// Kubernetes. It then merges the overlay (nil for none) into the result, like one more dnsConfig; an overlay with a policy is merged into
// that policy's settings instead, and the result is cut to the limits again. It drops an overlay that would leave the pod without a
// nameserver. Decide by the nameservers of the result whether to steer the pod.
func Form(node Node, pod Pod, overlay *Overlay) Result {
	var r Result
	r.Settings, r.Notes = form(node, pod)
	if overlay != nil {
		merged, notes, err := merge(node, pod, r, *overlay)
		if err != nil {
			r.Refused = fmt.Errorf("overlay dropped: %w", err)
		} else {
			fit, cut := merged.fit()
			r = Result{Settings: fit, Notes: append(notes, cut...), Overlaid: true}
		}
	}
	r.Notes = append(r.Notes, r.lint()...)
	return r
}

// merge merges the overlay into the settings that the pod has without it, or returns the reason why it cannot. The notes are about
// the settings before the merge.
func merge(node Node, pod Pod, own Result, o Overlay) (Settings, []Note, error) {
	base, notes := own.Settings, own.Notes
	if o.Policy != "" {
		base, notes = form(node, Pod{Policy: o.Policy, HostNetwork: pod.HostNetwork, Namespace: pod.Namespace})
	}
	merged := base.merge(o.Settings)
	merged.Nameservers = o.replace(merged.Nameservers)
	if len(merged.Nameservers) == 0 && len(own.Nameservers) > 0 {
		return Settings{}, nil, errors.New("nameservers: it leaves the pod without any: name one, or another policy")
	}
	return merged, notes, nil
}

// form returns the settings that the kubelet gives a pod (pkg/kubelet/network/dns/dns.go, GetPodDNS, Kubernetes 1.36).
func form(node Node, pod Pod) (Settings, []Note) {
	var notes []Note
	policy := pod.Policy
	if p, err := ParsePolicy(string(policy)); err == nil {
		policy = p
	} else {
		// The kubelet takes an unknown policy as ClusterFirst, even on the host's network, where it takes ClusterFirst itself as
		// Default.
		policy = ClusterFirstWithHostNet
		notes = append(notes, note(UnknownPolicy, "%v; taken as %s", err, ClusterFirst))
	}
	if policy == ClusterFirst && pod.HostNetwork {
		policy = Default
	}
	cluster := policy == ClusterFirst || policy == ClusterFirstWithHostNet
	if cluster && len(node.ClusterDNS) == 0 {
		policy, cluster = Default, false
		notes = append(notes, note(MissingClusterDNS, "no cluster DNS address is known: the pod has the node's own settings"))
	}

	var s Settings
	switch {
	case cluster:
		s = node.clusterFirst(pod.Namespace)
	case policy == Default:
		s = node.own()
	}
	if pod.Config != nil {
		s = s.merge(*pod.Config)
	}
	s, cut := s.fit()
	return s, append(notes, cut...)
}

// clusterFirst returns the settings of the policy ClusterFirst, to which dnsConfig is added. They have the node's search domains,
// but not its options.
func (n Node) clusterFirst(namespace string) Settings {
	s := Settings{Options: []string{"ndots:5"}}
	for _, a := range n.ClusterDNS {
		s.Nameservers = append(s.Nameservers, a.Unmap().String())
	}
	var host []string
	if n.Host != nil {
		host = n.Host.Searches
	}
	if n.ClusterDomain == "" {
		s.Searches = slices.Clone(host) // as they are: duplicates stay, too
		return s
	}
	svc := "svc." + n.ClusterDomain
	s.Searches = firstOfEach(append([]string{namespace + "." + svc, svc, n.ClusterDomain}, host...))
	return s
}

// own returns the settings of the policy Default, to which dnsConfig is added.
func (n Node) own() Settings {
	if n.Host != nil {
		return n.Host.clone()
	}
	// If the kubelet is configured without a resolv.conf, it gives pods loopback nameservers, to effectively disable DNS lookups.
	s := Settings{Searches: []string{"."}}
	for _, a := range n.Addresses {
		if a.Unmap().Is6() {
			s.Nameservers = append(s.Nameservers, "::1")
		} else {
			s.Nameservers = append(s.Nameservers, "127.0.0.1")
		}
	}
	if len(s.Nameservers) == 0 {
		s.Nameservers = []string{"127.0.0.1"}
	}
	return s
}
