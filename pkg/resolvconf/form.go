package resolvconf

import (
	"errors"
	"net/netip"
)

// Node has the settings of a node that determine its pods' DNS settings.
type Node struct {
	Host          Settings     // the settings of the node's resolv.conf, from File.Host
	ClusterDNS    []netip.Addr // the cluster DNS addresses, in the order in which pods get them
	ClusterDomain string
	// Locals maps a cluster DNS address to the node's local address that a pod may use instead. It has the form of Overlay.Instead.
	Locals map[string]string
}

// Settings returns the settings that the kubelet gives a pod of the namespace that has this policy, no dnsConfig and a network of its own
// (pkg/kubelet/network/dns/dns.go, GetPodDNS, Kubernetes 1.36). They are within the limits of Kubernetes.
func (n Node) Settings(policy Policy, namespace string) Settings {
	var s Settings
	switch policy {
	case Default:
		s = n.Host
	case ClusterFirst, ClusterFirstWithHostNet: // the node's search domains, but not its options
		svc := "svc." + n.ClusterDomain
		s = Settings{
			Nameservers: n.clusterDNS(),
			Searches:    firstOfEach(append([]string{namespace + "." + svc, svc, n.ClusterDomain}, n.Host.Searches...)),
			Options:     []string{"ndots:5"},
		}
	}
	s, _ = s.fit()
	return s
}

// clusterDNS returns the cluster DNS addresses as nameservers.
func (n Node) clusterDNS() (out []string) {
	for _, a := range n.ClusterDNS {
		out = append(out, a.Unmap().String())
	}
	return out
}

// Result has a pod's settings, and notes about them.
type Result struct {
	Settings
	Notes []Note
}

// Apply merges an overlay into a pod's own settings, like one more dnsConfig, and cuts the result to the limits of Kubernetes. An overlay
// with a policy, which must come from Spell, replaces the pod's own settings. Apply returns an error for an overlay that would leave the
// pod without a nameserver. Decide by the nameservers of the result whether to steer the pod.
func (o Overlay) Apply(own Settings) (Result, error) {
	base, notes := Settings{}.merge(own).fit()
	without := len(base.Nameservers) == 0
	if o.Policy != "" {
		base, notes = Settings{}, nil
	}
	merged := base.merge(o.Settings)
	merged.Nameservers = o.replace(merged.Nameservers)
	if len(merged.Nameservers) == 0 && !without {
		return Result{}, errors.New("overlay dropped: nameservers: it leaves the pod without any: name one, or another policy")
	}
	merged, cut := merged.fit()
	return Result{merged, append(append(notes, cut...), merged.lint()...)}, nil
}
