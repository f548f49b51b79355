package trace

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// Links of the node in the cases. The pod and its neighbour have one each. The route to the pod detoured leads by detourLink, although its
// packets may come by another link.
const (
	podLink, otherLink, uplink, detourLink, bridge = "pod0", "pod1", "eth0", "cilium_host", "cni0"
)

// Secret is the agent's lease secret in the cases.
const Secret = steer.Secret(0x6e65617264736e64)

// Arrangement is a way in which a node has neardns's addresses, with the rules for it.
type Arrangement struct {
	Name string
	Host steer.Host
	Pod  steer.Pod
	// Iptables is set if the iptables back end has the arrangement, too.
	Iptables bool
}

// both makes a pair of the addresses named a and b in each IP family.
func both[T any](pair func(a, b netip.Addr) T, a, b string) []T {
	return []T{pair(addresses(true)[a], addresses(true)[b]), pair(addresses(false)[a], addresses(false)[b])}
}

func redirect(clusterDNS, steering netip.Addr) steer.Redirect {
	return steer.Redirect{ClusterDNS: clusterDNS, Steering: steering}
}

func local(address, clusterDNS netip.Addr) steer.Local {
	return steer.Local{Address: address, ClusterDNS: clusterDNS, Service: address == addresses(address.Is4())["cluster"]}
}

// Arrangements returns the arrangements of the cases, with the host's rules as the agent would describe them.
func Arrangements() []Arrangement {
	node := steer.Host{Uplinks: []string{uplink}, Bridges: []string{bridge}, Secret: Secret}
	steered, intercepting, onLink, nodeCache := node, node, node, node

	steered.Redirects, steered.Locals = both(redirect, "cluster", "steering"), both(local, "local", "cluster")
	steered.FallbackOnly = both(redirect, "second", "retired")

	detoured := steered
	detoured.Detours = []string{detourLink}

	intercepting.Redirects, intercepting.Locals = steered.Redirects, steered.Locals
	intercepting.InterceptNode = true
	intercepting.Exempt = []netip.Addr{addresses(true)["opted-out"], addresses(false)["opted-out"]}

	onLink.Locals = slices.Concat(both(local, "cluster", "cluster"), both(local, "local", "second"))
	onLink.OwnLocals = true
	onLink.Exempt = intercepting.Exempt

	nodeCache.Locals = slices.Concat(both(local, "cluster", "second"), both(local, "local", "second"))
	nodeCache.OwnLocals, nodeCache.HealthPort = true, 8080
	for _, l := range nodeCache.Locals {
		nodeCache.Ceded = append(nodeCache.Ceded, l.Address)
	}
	return []Arrangement{
		{Name: "steered", Host: steered, Iptables: true, Pod: steer.Pod{Redirects: steered.Redirects}},
		{Name: "steered, with a detour", Host: detoured, Iptables: true},
		{Name: "node interception", Host: intercepting},
		{Name: "cluster DNS on the link", Host: onLink, Iptables: true},
		{Name: "in node-cache's place", Host: nodeCache, Iptables: true},
	}
}

// transparent reports whether the agent's sockets have IP_TRANSPARENT, which it sets if it cedes addresses.
func (a Arrangement) transparent() bool { return len(a.Host.Ceded) > 0 }

// ours reports whether an address is on neardns's link.
func (a Arrangement) ours(addr netip.Addr) bool {
	return slices.ContainsFunc(slices.Concat(a.Host.Redirects, a.Host.FallbackOnly), func(r steer.Redirect) bool { return r.Steering == addr }) ||
		slices.ContainsFunc(a.Host.Locals, func(l steer.Local) bool { return l.Address == addr })
}

// leased returns the addresses of one IP family for which the agent renews leases.
func (a Arrangement) leased(is4 bool) []netip.Addr {
	var out []netip.Addr
	for _, r := range a.Host.Redirects {
		out = append(out, r.Steering)
	}
	for _, l := range a.Host.Locals {
		out = append(out, l.Address)
	}
	return slices.DeleteFunc(out, func(a netip.Addr) bool { return a.Is4() != is4 })
}

// Address returns the address in an IP family for a word of the cases, for example "cluster".
func Address(word string, is4 bool) netip.Addr { return addresses(is4)[word] }

// addresses returns the addresses of an IP family by their words in the cases.
func addresses(is4 bool) map[string]netip.Addr {
	v := func(four, six string) netip.Addr {
		if is4 {
			return netip.MustParseAddr(four)
		}
		return netip.MustParseAddr(six)
	}
	return map[string]netip.Addr{
		"cluster":     v("10.96.0.10", "fd00:96::a"),            // the cluster DNS address
		"second":      v("10.96.0.11", "fd00:96::b"),            // a second Service with kube-dns behind it
		"steering":    v("169.254.20.11", "fd00:90de:d95::b"),   // what replaces the cluster DNS address
		"retired":     v("169.254.20.12", "fd00:90de:d95::c"),   // a steering address that was removed from the configuration; it replaces second
		"local":       v("169.254.20.10", "fd00:90de:d95::a"),   // the local address
		"pod":         v("10.244.1.5", "fd00:244:1::5"),         // a pod whose packets come by its own link
		"neighbour":   v("10.244.1.6", "fd00:244:1::6"),         // a pod, whose name another pod may take
		"opted-out":   v("10.244.1.7", "fd00:244:1::7"),         // a pod that opted out
		"detoured":    v("10.244.1.8", "fd00:244:1::8"),         // a pod to which the route leads by another link
		"lan":         v("192.0.2.9", "2001:db8::9"),            // another machine on the node's network
		"unroutable":  v("203.0.113.9", "2001:db8:9::9"),        // an address that only the default route covers
		"node":        v("192.0.2.5", "2001:db8::5"),            // the node itself
		"kube-dns":    v("10.244.2.9", "fd00:244:2::9"),         // kube-dns's pod
		"outside":     v("198.51.100.53", "2001:db8:53::53"),    // some other DNS server
		"probe":       steer.ProbeSource(is4),                   // source of the prober's probes
		"proof":       steer.FallbackCheckSource(is4),           // source of the prober's fallback checks
		"prober":      v("169.254.20.240", "fd00:90de:d95::f0"), // the prober's interface, another source
		"turn":        steer.HairpinSource(is4),                 // source of the node's own packets in the hairpin
		"turn-of-pod": first(steer.HairpinSources(is4)),         // source of pods' packets that leave the hairpin for a bridge
	}
}

func first(a, _ netip.Addr) netip.Addr { return a }

// routes returns the links by which addresses are reached: address → link, "" for the host's addresses. The others use the default route.
func routes(words map[string]netip.Addr) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for word, link := range map[string]string{
		"pod": podLink, "neighbour": otherLink, "opted-out": podLink, "detoured": detourLink, "lan": uplink, "kube-dns": bridge,
		"probe": steer.ProberInterface, "proof": steer.ProberInterface, "prober": steer.ProberInterface, "turn": steer.HairpinIn,
		"node": "", "steering": "", "local": "", "retired": "",
	} {
		out[words[word]] = link
	}
	return out
}

func (r *run) word(a netip.Addr) string {
	for _, word := range slices.Sorted(maps.Keys(r.words)) {
		if r.words[word] == a {
			return word
		}
	}
	return a.String()
}
