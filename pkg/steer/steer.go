// Package steer describes neardns's packet rules as values. Pod is the rules of a pod's netns, which send the pod's queries to
// its own node. Host is the rules of the host with the switch, which delivers queries to the agent only under a lease and
// otherwise sends them to kube-dns. The package also sends the lease datagrams. Package rules opens the back ends that write
// such rules.
//
// It guarantees that a description that passed its checks is consistent, and it neither reads nor writes rules. It knows no
// Kubernetes type, no flag and no logger.
//
// On failure it returns an error that names the wrong field; a datagram that no rule took is ErrNoSwitch.
package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Names and numbers that the kernel has. Operators see them in `nft list table inet neardns`.
const (
	// TableName is the nftables table (family inet) in a pod's netns and in the host's.
	TableName = "neardns"
	// ProberInterface is the host side of the prober's veth; the switch trusts the prober's addresses only there.
	ProberInterface = "neardns-prober"
	// SourcesInterface is the veth's other end, which has the prober's addresses, if the prober has no netns of its own (D-031).
	SourcesInterface = "neardns-frames"
	// Mark is the packet mark of the agent's lease datagrams, and of its own queries to a cluster DNS address if host processes
	// are intercepted. The host's output hook drops the former and clears the mark of the latter, so that it never meets
	// another program's rules or routes. It only distinguishes these packets from those of other root processes.
	Mark = 0x6e646e73
	// DefaultLifetime is how long a lease lasts after the last answered probe, by default.
	DefaultLifetime = 800 * time.Millisecond
)

// The prober's addresses, one pair per family. A query from the probe source is delivered wherever a socket is bound, so that
// the first lease can be granted. One from the source of fallback checks always takes the fallback, so that the fallback check works also
// while the agent serves. Both have an effect only on ProberInterface and, with Host.OwnLocals, for packets that the node itself sends.
var (
	ProbeSource4         = netip.MustParseAddr("169.254.20.250")
	FallbackCheckSource4 = netip.MustParseAddr("169.254.20.251")
	ProbeSource6         = netip.MustParseAddr("fd00:90de:d95::fa")
	FallbackCheckSource6 = netip.MustParseAddr("fd00:90de:d95::fb")
)

// OwnLinks names neardns's own veths with both ends in the host's netns: no pod is behind them.
func OwnLinks() []string {
	return []string{ProberInterface, SourcesInterface, HairpinOut, HairpinIn}
}

// First default steering addresses; the next redirect of the family gets the next address.
var (
	firstSteering4 = netip.MustParseAddr("169.254.20.11")
	firstSteering6 = netip.MustParseAddr("fd00:90de:d95::b")
)

// ProbeSource is the address whose queries are delivered without a lease.
func ProbeSource(is4 bool) netip.Addr {
	if is4 {
		return ProbeSource4
	}
	return ProbeSource6
}

// FallbackCheckSource is the address whose queries always take the fallback.
func FallbackCheckSource(is4 bool) netip.Addr {
	if is4 {
		return FallbackCheckSource4
	}
	return FallbackCheckSource6
}

// Protocol is an IP protocol number that DNS uses.
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

// Redirect pairs a cluster DNS address with the steering address that replaces it on every node. Both are of one family. The
// pairing is 1:1, since answers are translated back by it.
type Redirect struct {
	ClusterDNS netip.Addr `json:"clusterDNS"`
	Steering   netip.Addr `json:"steering,omitzero"`
}

func (r Redirect) String() string { return r.ClusterDNS.String() + "=" + r.Steering.String() }

// Is4 reports whether both addresses are IPv4.
func (r Redirect) Is4() bool { return r.ClusterDNS.Is4() }

// Local is a local address, which clients query directly, and the cluster DNS address that answers if the agent does not. Both
// are of one family.
type Local struct {
	Address    netip.Addr `json:"address"`
	ClusterDNS netip.Addr `json:"clusterDNS"`
	// Service means that the address is a Service's ClusterIP, which neardns also puts on its link, as NodeLocal DNSCache does. Packets
	// from outside the node still go to kube-proxy.
	Service bool `json:"service,omitempty"`
}

// Complete fills in each missing steering address by position in its family (169.254.20.11+i, fd00:90de:d95::b+i) and checks
// the result: valid unicast addresses of one family per pair, no address twice. It does not modify its argument.
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
		// A default belongs to the position, whether or not an earlier redirect named its own address.
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

// Locals pairs each local address with the first cluster DNS address of its family. An address without one is an error:
// it would have no fallback.
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

// CheckLocals checks local addresses with a fallback that the user chose: valid unicast addresses of one family per pair, no
// address twice. An address may be its own fallback if kube-proxy translates it.
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

// Ruleset is a description of one table: Pod or Host. Its zero value is an empty table.
type Ruleset interface{ ruleset() }

func (Pod) ruleset()  {}
func (Host) ruleset() {}

// Pod describes the pod table: the rules in a pod's netns that send the pod's queries to its own node.
type Pod struct {
	Redirects []Redirect // steered, in both directions
	// Always steers also queries that get no answer. It is for the prober, which must not mistake kube-dns's answers for the
	// agent's; a pod is bypassed in that case (see podTrust).
	Always bool
	// Leaving steers no new query and no new connection. Answers on their way still come, and open connections to the agent go on. It
	// needs a back end with rules.Caps.Leaves.
	Leaving bool
	// Open are TCP connections that the pod had before the rules existed: they keep their cluster DNS address until they end.
	// Comparing existing rules ignores them. The iptables back end does not need them: its rules act on the SYN alone.
	Open []Connection
}

// Connection is one of a pod's TCP connections to a cluster DNS address, by its source port.
type Connection struct {
	ClusterDNS netip.Addr
	Port       uint16
}

// Host describes the host table with the switch. The order of its slices has no meaning.
type Host struct {
	Redirects     []Redirect    // steering addresses that the agent may serve
	FallbackOnly  []Redirect    // removed from the configuration but still used by a pod: never leased, always sent to kube-dns
	Locals        []Local       // local addresses, from Locals()
	Uplinks       []string      // interfaces from which no client is served, from Uplinks()
	Bridges       []string      // bridges that pods may be attached to; only the iptables back end needs them, and finds them itself
	Exempt        []netip.Addr  // pods that opted out of interception; the plugin adds and removes them too
	InterceptNode bool          // steer also pods without a pod table, and host processes
	Lifetime      time.Duration // how long a lease lasts, rounded up to 20 ms; 0 means DefaultLifetime
	Secret        Secret        // of the Lease that may renew; 0: keep the table's, or none if there is none
	// Ceded are those of neardns's addresses at which another program's socket is served without a lease, as it would be
	// without neardns. They are for a node that shares its addresses with a predecessor that may start again. The agent's own
	// sockets there must be transparent (IP_TRANSPARENT), which distinguishes the two even if the agent hangs.
	Ceded []netip.Addr
	// OwnLocals gives the node's own processes that query a local address the fallback, too. They depend on the lease alone, so
	// after a kill they wait for one lease lifetime at most.
	OwnLocals bool
	// Detours are links by which the route to a source may lead although its packets arrive by another. nil: those that exist
	// when the rules are made.
	Detours []string
	// HealthPort keeps the node's own TCP connections to this port of the local addresses out of conntrack: the kubelet's
	// probes of a cache's health. 0: none.
	HealthPort uint16
}

// Example describes both families, with addresses of documentation: a back end has the kernel try its rules.
func Example() Host {
	a := netip.MustParseAddr
	return Host{
		Redirects: []Redirect{{a("192.0.2.1"), a("192.0.2.2")}, {a("2001:db8::1"), a("2001:db8::2")}},
		Locals:    []Local{{Address: a("192.0.2.3"), ClusterDNS: a("192.0.2.1")}, {Address: a("2001:db8::3"), ClusterDNS: a("2001:db8::1")}},
		OwnLocals: true,
	}
}

// LeaseState is a lease in force and the time until it expires.
type LeaseState struct {
	Address  netip.Addr
	Protocol Protocol
	Expires  time.Duration
}

// DriftError lists how the kernel's rules differ from the description. Items are for display.
type DriftError struct{ Items []string }

func (e *DriftError) Error() string { return "rules differ: " + strings.Join(e.Items, "; ") }

// ErrNotSupported marks a kernel that lacks what the rules need; the error around it names the missing piece.
var ErrNotSupported = errors.New("not supported by this kernel")
