package resolvconf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Settings are a resolver's settings. The words are those of a resolv.conf: an option is "ndots:5" or, without a value,
// "edns0". Runtimes (CRI, CNI's dns capability) use the same three lists.
type Settings struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Searches    []string `json:"searches,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Ndots returns how many dots a name needs to be queried as it is first: the option's last value that is a number, at most 15 as
// in glibc and musl, and 1 without one (resolv.conf(5)).
func (s Settings) Ndots() int {
	ndots := 1
	for _, o := range s.Options {
		if value, ok := strings.CutPrefix(o, "ndots:"); ok {
			if n, err := strconv.ParseUint(value, 10, 32); err == nil {
				ndots = int(min(n, 15))
			}
		}
	}
	return ndots
}

func (s Settings) clone() Settings {
	return Settings{slices.Clone(s.Nameservers), slices.Clone(s.Searches), slices.Clone(s.Options)}
}

// merge appends more to s as the kubelet appends a pod's dnsConfig: nameservers and searches without what stands there
// already, and options by name, the later value in the earlier one's place. An option with an empty value has none.
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

// firstOfEach leaves out what stands there already.
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

// lastOfEach keeps the last option of each name, in the place of the first: the kubelet's rule, whose own order is that of
// a map and changes from pod to pod (kubernetes/kubernetes pkg/kubelet/network/dns/dns.go, mergeDNSOptions).
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

// Policy is what a pod's settings start from.
type Policy string

// The policies of Kubernetes. ClusterFirst is Default for a pod on the host's network.
const (
	Default                 Policy = "Default"
	ClusterFirst            Policy = "ClusterFirst"
	ClusterFirstWithHostNet Policy = "ClusterFirstWithHostNet"
	None                    Policy = "None"
)

// custom is the name that None had when it was proposed.
const custom = "Custom"

// ParsePolicy reads a policy's name. "Custom" is None.
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

// Overlay is the operator's change of pods' settings: merged as a pod's dnsConfig is, but last. With a policy it has all settings:
// the settings start from that policy, and neither the pod's own policy nor its dnsConfig have a part in them.
type Overlay struct {
	Policy Policy `json:"policy,omitempty"`
	Settings
	// Instead has, by nameserver, the one that stands in its place, both as netip.Addr writes them. It is not written: it is what Spell
	// makes of the word Local.
	Instead map[string]string `json:"instead,omitempty"`
}

// Local is a word in the place of a nameserver: the node's local address takes the place of each cluster DNS address that the pod
// has, of its own or by another level. With the policy None it also stands for these addresses. The pod's other nameservers stay.
const Local = "local"

// NamesLocal reports whether the word is among the nameservers.
func (o Overlay) NamesLocal() bool { return slices.Contains(o.Nameservers, Local) }

// Over lays o on top of another overlay: laying the result gives what laying below first and o then gives.
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

// Spell returns an overlay that gives a pod of the namespace the same and whose policy, if it has one, is None: what the policy
// starts from on this node is written out in it, and so is what Local stands for here. An unknown policy is left as it is, for Form
// to refuse.
func (o Overlay) Spell(node Node, namespace string) Overlay {
	out := Overlay{o.Policy, o.clone(), maps.Clone(o.Instead)}
	if o.NamesLocal() {
		out.Nameservers, out.Instead = nil, maps.Clone(node.Locals)
		for _, n := range o.Nameservers {
			if n != Local {
				out.Nameservers = append(out.Nameservers, n)
				continue
			}
			if o.Policy == None { // it starts from nothing, so the addresses to be replaced are not there yet
				for _, a := range node.ClusterDNS {
					out.Nameservers = append(out.Nameservers, a.Unmap().String())
				}
			}
		}
	}
	if policy, err := ParsePolicy(string(o.Policy)); err == nil {
		base, _ := form(node, Pod{Policy: policy, Namespace: namespace})
		out.Policy, out.Settings = None, base.merge(out.Settings)
	}
	return out
}

// replace puts each nameserver's substitute into its place. One address is one, however it is written.
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

// check finds what may not stand in an overlay. field is the overlay's own path in what its author wrote.
func (o Overlay) check(field string) []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Policy != "" {
		if _, err := ParsePolicy(string(o.Policy)); err != nil {
			fault("%s: %w", strict.Join(field, "policy"), err)
		}
	}
	for i, n := range o.Nameservers {
		if a, err := netip.ParseAddr(n); err != nil || a.Zone() != "" {
			fault("%s[%d]: %s is not an IP address: write it without port, prefix, zone or name, like 10.96.0.10", strict.Join(field,
				"nameservers"), i, strict.Quote(n))
		}
	}
	for i, d := range o.Searches {
		if !isSearch(d) {
			fault("%s[%d]: %s is not a domain: write it like svc.cluster.local", strict.Join(field, "searches"), i, strict.Quote(d))
		}
	}
	for i, option := range o.Options {
		if name, _, _ := strings.Cut(option, ":"); name == "" || !strict.IsWord(option) {
			fault("%s[%d]: %s is not an option: it needs a name, and neither white space nor control characters", strict.Join(field,
				"options"), i, strict.Quote(option))
		}
	}
	return faults
}

// isSearch accepts what the API server accepts in dnsConfig (since Kubernetes 1.34 also a leading underscore and a lone dot), and also
// capitals and underscores anywhere. It rejects labels that DNS cannot carry.
func isSearch(s string) bool {
	return s == "." || strict.IsDomain(strings.TrimSuffix(s, "."))
}

// mostFaults limits the reported faults: an annotation may have 256 KiB of them.
const mostFaults = 8
