package resolvconf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Settings are the three lists of a resolv.conf. The words are those of the file: an option is "ndots:5" or, without a value,
// "edns0". Container runtimes (CRI, CNI's dns capability) use the same three lists.
type Settings struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`
}

func (s Settings) clone() Settings {
	return Settings{slices.Clone(s.Nameservers), slices.Clone(s.Searches), slices.Clone(s.Options)}
}

// merge returns s with more added, as the kubelet adds a pod's dnsConfig. It leaves out nameservers and search domains that s
// already has. An option replaces an earlier one of the same name, in its position. An option with an empty value loses its colon.
func (s Settings) merge(more Settings) Settings {
	options := lastOfEach(slices.Concat(s.Options, more.Options))
	for i, o := range options {
		if name, value, _ := strings.Cut(o, ":"); value == "" {
			options[i] = name
		}
	}
	return Settings{
		Nameservers: firstOfEach(slices.Concat(s.Nameservers, more.Nameservers)),
		Searches:    firstOfEach(slices.Concat(s.Searches, more.Searches)),
		Options:     options,
	}
}

// firstOfEach removes duplicates, and keeps the first of each word.
func firstOfEach(words []string) []string {
	seen := make(map[string]bool, len(words))
	var out []string
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}

// lastOfEach keeps only the last option of each name, in the position of the first. The kubelet keeps the same options, but in the
// random order of a Go map (kubernetes/kubernetes pkg/kubelet/network/dns/dns.go, mergeDNSOptions).
func lastOfEach(options []string) []string {
	at := make(map[string]int, len(options))
	var out []string
	for _, o := range options {
		name, _, _ := strings.Cut(o, ":")
		if i, ok := at[name]; ok {
			out[i] = o
			continue
		}
		at[name] = len(out)
		out = append(out, o)
	}
	return out
}

// Policy is a pod's dnsPolicy. It selects the settings to which dnsConfig is added.
type Policy string

// The policies of Kubernetes. For a pod on the host's network, ClusterFirst means Default.
const (
	Default                 Policy = "Default"
	ClusterFirst            Policy = "ClusterFirst"
	ClusterFirstWithHostNet Policy = "ClusterFirstWithHostNet"
	None                    Policy = "None"
)

// custom is the name that Kubernetes's proposal had for the policy None.
const custom = "Custom"

// ParsePolicy returns the policy of the given name. "Custom" is accepted for None.
func ParsePolicy(name string) (Policy, error) {
	switch p := Policy(name); p {
	case Default, ClusterFirst, ClusterFirstWithHostNet, None:
		return p, nil
	case custom:
		return None, nil
	}
	return "", fmt.Errorf("policy %s is not known: write one of %s, %s, %s, %s", strict.Quote(name), Default, ClusterFirst,
		ClusterFirstWithHostNet, None)
}

// Overlay is a change to a pod's settings. It is merged like a pod's dnsConfig, but after it. If the overlay has a policy, the
// settings are those of this policy with the overlay merged into them, and the pod's own policy and dnsConfig are ignored. Its values are
// checked where it is read (ReadOverlay).
type Overlay struct {
	Policy Policy `json:"policy,omitempty"`
	Settings
	// Instead maps a nameserver to the nameserver that replaces it, both as netip.Addr.String writes them. Users cannot set it:
	// Spell makes it from the word Local.
	Instead map[string]string `json:"instead,omitempty"`
}

// Local is a word that an overlay may have as nameserver. It replaces each cluster DNS address among the pod's nameservers by the
// node's local address, and leaves the other nameservers. With the policy None it first adds the cluster DNS addresses, because a
// pod has no nameservers then.
const Local = "local"

// NamesLocal reports whether the word Local is among the nameservers.
func (o Overlay) NamesLocal() bool { return slices.Contains(o.Nameservers, Local) }

// Over returns an overlay with the same effect as applying below first and then o.
func (o Overlay) Over(below Overlay) Overlay {
	if o.Policy != "" {
		return Overlay{o.Policy, o.clone(), maps.Clone(o.Instead)}
	}
	instead := maps.Clone(below.Instead)
	if instead == nil {
		instead = maps.Clone(o.Instead)
	} else {
		maps.Copy(instead, o.Instead)
	}
	return Overlay{below.Policy, below.merge(o.Settings), instead}
}

// Spell returns an overlay that has the same effect on a pod of the namespace but does not depend on the node. If o has a policy,
// the result has the policy None and the settings of o's policy on this node. The word Local becomes the node's local addresses in
// Instead.
func (o Overlay) Spell(node Node, namespace string) Overlay {
	out := Overlay{o.Policy, o.clone(), maps.Clone(o.Instead)}
	if o.NamesLocal() {
		out.Nameservers, out.Instead = nil, maps.Clone(node.Locals)
		for _, n := range o.Nameservers {
			if n != Local {
				out.Nameservers = append(out.Nameservers, n)
				continue
			}
			if o.Policy == None { // None has no nameservers: add the cluster DNS addresses, which Instead then replaces
				out.Nameservers = append(out.Nameservers, node.clusterDNS()...)
			}
		}
	}
	if o.Policy != "" {
		out.Policy, out.Settings = None, node.Settings(o.Policy, namespace).merge(out.Settings)
	}
	return out
}

// replace returns nameservers with each one replaced that is in Instead. It compares addresses, not their spelling, and removes
// duplicates.
func (o Overlay) replace(nameservers []string) []string {
	if len(o.Instead) == 0 {
		return nameservers
	}
	out := slices.Clone(nameservers)
	for i, n := range out {
		if a, err := netip.ParseAddr(n); err == nil && o.Instead[a.Unmap().String()] != "" {
			out[i] = o.Instead[a.Unmap().String()]
		}
	}
	return firstOfEach(out)
}

// isSearch accepts the search domains that the API server accepts in dnsConfig (recent versions also ones with a leading
// underscore, and "."). It also accepts capitals and underscores anywhere. It rejects labels that are too long for DNS.
func isSearch(s string) bool {
	return s == "." || strict.IsDomain(strings.TrimSuffix(s, "."))
}
