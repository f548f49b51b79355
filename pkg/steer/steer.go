// Package steer describes neardns's packet rules as Go values. A Pod describes the rules in a pod's netns, which send the pod's
// queries to its own node. A Host describes the rules in the host's netns: they deliver queries to the agent only under a
// lease, and otherwise send them to kube-dns. The package also sends the datagrams that renew leases. Package rules writes the
// rules, with nftables or iptables.
//
// It guarantees that a description that passed its checks is consistent, and it neither reads nor writes rules. It knows no
// Kubernetes type, no flag and no logger.
//
// On failure it returns an error that names the wrong field or value. If no rule took a lease datagram, the error is ErrNoSwitch.
package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Names and numbers in the kernel's rules and links, which operators see, for example in `nft list table inet neardns`.
const (
	// TableName is the name of neardns's nftables table (family inet), in a pod's netns and in the host's.
	TableName = "neardns"
	// ProberInterface is the host end of the prober's veth. The host's rules take a query for the prober's only if it comes from
	// this link or, with Host.OwnLocals, from the node itself.
	ProberInterface = "neardns-prober"
	// SourcesInterface is the other end of the prober's veth, with the prober's addresses, if the prober has no netns of its
	// own (D-031).
	SourcesInterface = "neardns-frames"
	// Mark is the packet mark of the agent's control packets (lease datagrams, Hold, Release) and, with node interception, of
	// neardns's own queries that must reach kube-dns. Rules in the host's output hook drop the control packets and clear the
	// mark of the queries, so that no other program's rules or routes see it. The mark distinguishes these packets from other
	// root processes' packets; it is no protection.
	Mark = 0x6e646e73
	// DefaultLifetime is how long a lease lasts after an answered probe, unless the configuration has another value. A back
	// end may round it up (rules.Caps.Step).
	DefaultLifetime = 800 * time.Millisecond
)

// Source addresses of the prober, one of each kind per IP family. Queries from ProbeSource are delivered to a bound socket
// without a lease, so that the first lease can be granted. Queries from FallbackCheckSource always go to kube-dns, so that the
// fallback can be checked while the agent serves. The host's rules treat the addresses in this way only on ProberInterface and,
// with Host.OwnLocals, for packets of the node itself.
var (
	ProbeSource4         = netip.MustParseAddr("169.254.20.250")
	FallbackCheckSource4 = netip.MustParseAddr("169.254.20.251")
	ProbeSource6         = netip.MustParseAddr("fd00:90de:d95::fa")
	FallbackCheckSource6 = netip.MustParseAddr("fd00:90de:d95::fb")
)

// OwnLinks names the ends of neardns's veths that may be in the host's netns. No pod is behind them.
func OwnLinks() []string {
	return []string{ProberInterface, SourcesInterface, HairpinOut, HairpinIn}
}

// Default steering addresses of the first redirect of each family. Each further redirect gets the next address.
var (
	firstSteering4 = netip.MustParseAddr("169.254.20.11")
	firstSteering6 = netip.MustParseAddr("fd00:90de:d95::b")
)

// ProbeSource is the prober's source address for queries that are delivered to the agent without a lease.
func ProbeSource(is4 bool) netip.Addr {
	if is4 {
		return ProbeSource4
	}
	return ProbeSource6
}

// FallbackCheckSource is the prober's source address for queries that always go to kube-dns.
func FallbackCheckSource(is4 bool) netip.Addr {
	if is4 {
		return FallbackCheckSource4
	}
	return FallbackCheckSource6
}

// Protocol is the IP protocol number of a transport protocol of DNS.
type Protocol uint8

// The two protocols that are steered.
const (
	UDP Protocol = 17
	TCP Protocol = 6
)

func (p Protocol) String() string {
	switch p {
	case UDP:
		return "udp"
	case TCP:
		return "tcp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Redirect has a cluster DNS address and the steering address that replaces it as destination on every node. Both are of one
// family. No two redirects share an address, because the source of an answer is translated back by the same pairs.
type Redirect struct {
	ClusterDNS netip.Addr `json:"clusterDNS"`
	Steering   netip.Addr `json:"steering,omitzero"`
}

func (r Redirect) String() string { return r.ClusterDNS.String() + "=" + r.Steering.String() }

// Is4 reports whether both addresses are IPv4.
func (r Redirect) Is4() bool { return r.ClusterDNS.Is4() }

// Local has a local address, which clients query directly, and the cluster DNS address to which the host's rules send those
// queries while the agent does not answer. Both are of one family.
type Local struct {
	Address    netip.Addr `json:"address"`
	ClusterDNS netip.Addr `json:"clusterDNS"`
	// Service means that Address is the ClusterIP of a Service, which neardns also has on its own link, as NodeLocal DNSCache
	// does. Queries to it from outside the node still go to kube-proxy.
	Service bool `json:"service,omitempty"`
}

// Is4 reports whether both addresses are IPv4.
func (l Local) Is4() bool { return l.Address.Is4() }

// Complete returns the redirects with each missing steering address filled in by its position in the family (169.254.20.11+i,
// fd00:90de:d95::b+i). It returns an error unless every address is a unicast address that pods can reach and that the prober and
// the hairpin do not use, each pair is of one family, and no address occurs twice. It does not modify its argument.
func Complete(redirects []Redirect) ([]Redirect, error) {
	out := slices.Clone(redirects)
	next4, next6 := firstSteering4, firstSteering6
	seen := map[netip.Addr]string{}
	for i := range out {
		r := &out[i]
		if err := checkAddr(r.ClusterDNS); err != nil {
			return nil, fmt.Errorf("redirects[%d].clusterDNS: %w", i, err)
		}
		if !r.Steering.IsValid() {
			r.Steering = next6
			if r.Is4() {
				r.Steering = next4
			}
		}
		// The default address follows from the position alone, whether or not earlier redirects name their own addresses.
		if r.Is4() {
			next4 = next4.Next()
		} else {
			next6 = next6.Next()
		}
		if err := checkAddr(r.Steering); err != nil {
			return nil, fmt.Errorf("redirects[%d].steering: %w", i, err)
		}
		if r.Steering.Is4() != r.ClusterDNS.Is4() {
			return nil, fmt.Errorf("redirects[%d]: steering address %s and cluster DNS address %s are of different families",
				i, r.Steering, r.ClusterDNS)
		}
		for _, a := range []struct {
			field string
			addr  netip.Addr
		}{{"clusterDNS", r.ClusterDNS}, {"steering", r.Steering}} {
			here := fmt.Sprintf("redirects[%d].%s", i, a.field)
			if before, ok := seen[a.addr]; ok {
				return nil, fmt.Errorf("%s: %s is already %s: each address may be used once", here, a.addr, before)
			}
			seen[a.addr] = here
		}
	}
	return out, nil
}

// Locals pairs each local address with the first cluster DNS address of its family. If there is none of that family, it returns
// an error: the address would have no fallback.
func Locals(addresses []netip.Addr, redirects []Redirect) ([]Local, error) {
	var out []Local
	for i, a := range addresses {
		if err := checkAddr(a); err != nil {
			return nil, fmt.Errorf("localAddresses[%d]: %w", i, err)
		}
		at := slices.IndexFunc(redirects, func(r Redirect) bool { return r.Is4() == a.Is4() })
		if at < 0 {
			return nil, fmt.Errorf("localAddresses[%d]: no redirect of %s's family, so %s would have no fallback: "+
				"add a cluster DNS address of that family or take it out", i, a, a)
		}
		for _, r := range redirects {
			if a == r.Steering || a == r.ClusterDNS {
				return nil, fmt.Errorf("localAddresses[%d]: %s is already used by redirect %s", i, a, r)
			}
		}
		if slices.ContainsFunc(out, func(l Local) bool { return l.Address == a }) {
			return nil, fmt.Errorf("localAddresses[%d]: %s is listed twice", i, a)
		}
		out = append(out, Local{Address: a, ClusterDNS: redirects[at].ClusterDNS})
	}
	return out, nil
}

// CheckLocals returns an error unless each local address and the fallback that the user chose for it are of one family and satisfy
// Complete's conditions for an address, and no local address occurs twice. An address may be its own fallback, if kube-proxy
// translates it.
func CheckLocals(locals []Local) error {
	for i, l := range locals {
		if err := checkAddr(l.Address); err != nil {
			return err
		}
		if err := checkAddr(l.ClusterDNS); err != nil {
			return fmt.Errorf("fallback of %s: %w", l.Address, err)
		}
		if l.Address.Is4() != l.ClusterDNS.Is4() {
			return fmt.Errorf("%s and its fallback %s are of different families", l.Address, l.ClusterDNS)
		}
		if slices.ContainsFunc(locals[:i], func(o Local) bool { return o.Address == l.Address }) {
			return fmt.Errorf("%s is listed twice", l.Address)
		}
	}
	return nil
}

func checkAddr(a netip.Addr) error {
	switch {
	case !a.IsValid():
		return errors.New("missing or not an IP address")
	case a.Is4In6(), a.Zone() != "":
		return fmt.Errorf("%s: write a plain IPv4 or IPv6 address, without mapping or zone", a)
	case a == ProbeSource4, a == FallbackCheckSource4, a == ProbeSource6, a == FallbackCheckSource6:
		return fmt.Errorf("%s is the prober's own address: choose another", a)
	case isHairpinSource(a):
		return fmt.Errorf("%s is one of the hairpin's own addresses: choose another", a)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is not a unicast address that pods can reach", a)
	case a.Is6() && a.IsLinkLocalUnicast():
		return fmt.Errorf("%s is IPv6 link-local, which is not routed from a pod: use a unique local address (fd00::/8)", a)
	}
	return nil
}

// Ruleset describes neardns's packet rules in one netns: a Pod or a Host.
type Ruleset interface{ ruleset() }

func (Pod) ruleset()  {}
func (Host) ruleset() {}

// Pod describes the rules in a pod's netns that send the pod's queries to its own node.
type Pod struct {
	Redirects []Redirect // queries to their cluster DNS addresses are steered, and the source of the answers is translated back
	// Always steers a query even if earlier ones got no answer; without it, nftables rules then send the query to kube-dns (see
	// podTrust in package nft). The prober needs Always, because it must not take kube-dns's answers for the agent's.
	Always bool
	// Leaving sends new queries and new connections to kube-dns, while answers on their way and open connections to the agent
	// still pass. It needs a back end with rules.Caps.Leaves.
	Leaving bool
	// Open has the TCP connections that the pod had before its rules existed. They stay on kube-dns until they are idle for
	// podConn, and at most podConns/2 of them (package nft). A comparison with existing rules ignores them. The iptables back end
	// ignores them too: its rules rewrite only the SYN.
	Open []Connection
}

// Connection identifies a pod's TCP connection to a cluster DNS address, by its source port.
type Connection struct {
	ClusterDNS netip.Addr
	Port       uint16
}

// Host describes the rules in the host's netns, which deliver queries to the agent or send them to kube-dns. The order of
// elements in its slices has no meaning.
type Host struct {
	Redirects     []Redirect    // queries to their steering addresses go to the agent while it holds a lease for the address, else to kube-dns
	FallbackOnly  []Redirect    // removed from the configuration, but a pod still uses them: never leased, always sent to kube-dns
	Locals        []Local       // local addresses
	Uplinks       []string      // interfaces that lead away from the node, whose clients are not served; see rules.Uplinks
	Bridges       []string      // the host's bridges; only the iptables back end uses them, and fills them in itself
	Exempt        []netip.Addr  // pods that opted out: ignored by node interception (nftables) and by on-link rules (iptables)
	InterceptNode bool          // node interception: steer host processes and pods without a pod table, too
	Lifetime      time.Duration // how long a lease lasts, rounded up to multiples of 20 ms (iptables: 1 s); 0 means DefaultLifetime
	Secret        Secret        // secret that lease datagrams must contain (nftables); 0 keeps the one that the table has
	// Ceded has those of neardns's addresses whose queries, while there is no lease, go to another program's socket bound there.
	// They are for a node where neardns replaced NodeLocal DNSCache, which may start again. The agent's own sockets at these
	// addresses must have IP_TRANSPARENT, by which the rules distinguish the two even if the agent hangs.
	Ceded []netip.Addr
	// OwnLocals: if a process of the node queries a local or steering address without a lease, kube-dns answers. The rules check
	// only the lease for such queries, no socket, so after the agent was killed, they get no answer for at most one lease
	// lifetime.
	OwnLocals bool
	// Detours are links over which the host may route packets to a pod although the pod's own packets come in on another link. If the
	// route to a packet's source address leads over a detour, the rules accept the packet on any link. nil means the detours that exist
	// when the rules are made.
	Detours []string
	// HealthPort is the port of the local addresses at which the kubelet probes the cache's health. The rules keep TCP
	// connections of the node to it out of conntrack. 0 means none.
	HealthPort uint16
}

// OfFamily returns the part of a description that concerns one IP family, with sorted addresses.
func (h Host) OfFamily(is4 bool) Host {
	h.Redirects, h.FallbackOnly, h.Locals = OfFamily(h.Redirects, is4), OfFamily(h.FallbackOnly, is4), OfFamily(h.Locals, is4)
	h.Exempt, h.Ceded = OfFamily(h.Exempt, is4), OfFamily(h.Ceded, is4)
	slices.SortFunc(h.Locals, func(a, b Local) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(h.Exempt, netip.Addr.Compare)
	slices.SortFunc(h.Ceded, netip.Addr.Compare)
	return h
}

// OfFamily returns those of the items that are of one IP family. The result is a copy.
func OfFamily[T interface{ Is4() bool }](items []T, is4 bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(i T) bool { return i.Is4() != is4 })
}

// Example returns a description for both families with documentation addresses. A back end uses it to test whether the kernel
// accepts its rules.
func Example() Host {
	a := netip.MustParseAddr
	return Host{
		Redirects: []Redirect{{a("192.0.2.1"), a("192.0.2.2")}, {a("2001:db8::1"), a("2001:db8::2")}},
		Locals:    []Local{{Address: a("192.0.2.3"), ClusterDNS: a("192.0.2.1")}, {Address: a("2001:db8::3"), ClusterDNS: a("2001:db8::1")}},
		OwnLocals: true,
	}
}

// LeaseState is a lease in force, with the time after which it expires.
type LeaseState struct {
	Address  netip.Addr
	Protocol Protocol
	Expires  time.Duration
}

// DriftError lists the differences between the kernel's rules and their description, in words for people.
type DriftError struct{ Items []string }

func (e *DriftError) Error() string { return "rules differ: " + strings.Join(e.Items, "; ") }

// ErrNotSupported is wrapped by an error if this kernel lacks something that the rules need.
var ErrNotSupported = errors.New("not supported by this kernel")
