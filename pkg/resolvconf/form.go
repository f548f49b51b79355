package resolvconf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/strict"
)

// Node is what a kubelet knows of its node.
type Node struct {
	// Host is the node's resolv.conf as File.Host reads it; nil if the kubelet uses none (resolvConf: "").
	Host          *Settings
	ClusterDNS    []netip.Addr // in the order in which pods get them
	ClusterDomain string       // "" for none: then a pod's search list is the node's
	// Addresses are the node's own. They count only without Host: a pod then queries the loopback address of each one's family.
	Addresses []netip.Addr
	// Locals has, by cluster DNS address, the node's local address that may stand in its place, as Overlay.Instead has them.
	Locals map[string]string
}

// Pod is the DNS part of a pod's specification. A caller that knows only what a runtime was given (CNI's dns capability) passes
// that as Config with policy None: such settings are merged already and come out as they are.
type Pod struct {
	Policy      Policy
	HostNetwork bool
	Namespace   string
	Config      *Settings // dnsConfig; nil for none, which is not the same as an empty one (that drops duplicates)
}

// Result is a pod's settings and how they came about.
type Result struct {
	Settings
	// Overlaid: the overlay is in the settings. Without it they are exactly the kubelet's.
	Overlaid bool
	// Refused is why an overlay was dropped; nil if it was not, or if there was none.
	Refused error
	// Notes are about the settings as they are, the kubelet's own warnings first.
	Notes []Note
}

// Form forms the settings of a pod: as the kubelet does, from policy and dnsConfig, cut to the limits of Kubernetes; then with
// the overlay (nil for none) merged into that, as one more dnsConfig would be; then cut to the limits given, or with Refuse
// not cut but without an overlay that goes beyond them. An overlay that is wrong, or that would leave a pod without any
// nameserver, is refused too. Steering is to be decided on the nameservers of the result.
func Form(node Node, pod Pod, overlay *Overlay, limits Limits, excess Excess) Result {
	var r Result
	r.Settings, r.Notes = form(node, pod)
	if overlay != nil {
		laid, notes, err := lay(node, pod, r, *overlay, limits, excess)
		if err != nil {
			r.Refused = fmt.Errorf("overlay dropped: %w", err)
		} else {
			r = Result{Settings: laid, Notes: notes, Overlaid: true}
		}
	}
	fit, cut := limits.fit(r.Settings)
	if excess == Truncate {
		r.Settings = fit
		r.Notes = append(r.Notes, cut...)
	} else {
		for _, c := range cut {
			r.Notes = append(r.Notes, note(BeyondLimits, "left as the pod has it: %s", c.Text))
		}
	}
	r.Notes = append(r.Notes, r.lint()...)
	return r
}

// lay merges the overlay into what the pod has of its own, or returns the reason why not. The notes are about the pod's own settings.
func lay(node Node, pod Pod, own Result, o Overlay, limits Limits, excess Excess) (Settings, []Note, error) {
	if faults := o.check(""); len(faults) > 0 {
		return Settings{}, nil, strict.Bounded(faults, mostFaults)
	}
	base, notes := own.Settings, own.Notes
	if o.Policy != "" {
		base, notes = form(node, Pod{Policy: o.Policy, HostNetwork: pod.HostNetwork, Namespace: pod.Namespace})
	}
	laid := base.merge(o.Settings)
	laid.Nameservers = o.replace(laid.Nameservers)
	if len(laid.Nameservers) == 0 && len(own.Nameservers) > 0 {
		return Settings{}, nil, errors.New("nameservers: it leaves the pod without any: name one, or another policy")
	}
	if excess == Refuse {
		fit, cut := limits.fit(laid)
		// A limit that the pod exceeded before is no reason: an option in the overlay does not change it.
		tooMany := len(fit.Nameservers) < len(laid.Nameservers) && adds(o.Nameservers, base.Nameservers)
		tooLong := len(fit.Searches) < len(laid.Searches) && adds(o.Searches, base.Searches)
		if tooMany || tooLong {
			var faults []error
			for _, c := range cut {
				if c.Code == NameserversCut && tooMany || c.Code == SearchesCut && tooLong {
					faults = append(faults, errors.New(c.Text))
				}
			}
			return Settings{}, nil, errors.Join(faults...)
		}
	}
	return laid, notes, nil
}

// adds reports whether more has something that have lacks.
func adds(more, have []string) bool {
	return slices.ContainsFunc(more, func(w string) bool { return !slices.Contains(have, w) })
}

// form is the kubelet's part (pkg/kubelet/network/dns/dns.go, GetPodDNS, Kubernetes 1.36).
func form(node Node, pod Pod) (Settings, []Note) {
	var notes []Note
	policy := pod.Policy
	if p, err := ParsePolicy(string(policy)); err == nil {
		policy = p
	} else {
		// Also on the host's network, where ClusterFirst would be Default.
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
	s, cut := Limits{}.fit(s)
	return s, append(notes, cut...)
}

// clusterFirst is what ClusterFirst starts from. The node's options have no part in it.
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
		s.Searches = slices.Clone(host) // not even without duplicates
		return s
	}
	svc := "svc." + n.ClusterDomain
	s.Searches = firstOfEach(append([]string{namespace + "." + svc, svc, n.ClusterDomain}, host...))
	return s
}

// own is what Default starts from.
func (n Node) own() Settings {
	if n.Host != nil {
		return n.Host.clone()
	}
	// Without a file the pod gets the meaning of its absence (the kubelet's words: to effectively disable DNS lookups).
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
