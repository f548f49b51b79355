// Package steer has the words for neardns's packet rules, as values: the pod table (Pod), which sends a pod's questions to its own
// node, and the host's rules with the switch (Host), which hand them to the agent only under a lease and otherwise give them back to
// kube-dns. It sends the lease datagrams, too. Package rules is the door to the back ends that make such rules.
//
// It must never write or read a rule, and the words never meet a Kubernetes type, a flag or a logger.
//
// Failure policy: a word that is wrong is an error that names its field; a datagram that no rule took is ErrNoSwitch.
package steer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Names and numbers that stand in the kernel. They are part of what operators see in `nft list table inet neardns`.
const (
	// TableName is the nftables table (family inet) in a pod's netns and in the host's.
	TableName = "neardns"
	// ProberInterface is the host side of the prober's veth; the switch trusts the prober's addresses only there.
	ProberInterface = "neardns-prober"
	// FramesInterface is the veth's other end where the prober has no netns of its own (D-031).
	FramesInterface = "neardns-frames"
	// Mark is the packet mark of the agent's lease datagrams, and of its own questions to a cluster DNS address where host
	// processes are intercepted. The host's output hook drops the former and takes the mark off the latter, so it never
	// meets another program's rules or routes; it only tells them from other root processes' packets.
	Mark = 0x6e646e73
	// DefaultLifetime bounds how long a lease outlives the last proven answer.
	DefaultLifetime = 800 * time.Millisecond
)

// The prober's addresses, one pair per family. A question from the probe source is delivered wherever a socket is bound,
// so that the first lease can be earned; one from the proof source always takes the fallback, so that the fallback is
// proven also while the agent serves. Both count only on ProberInterface.
var (
	ProbeSource4 = netip.MustParseAddr("169.254.20.250")
	ProofSource4 = netip.MustParseAddr("169.254.20.251")
	ProbeSource6 = netip.MustParseAddr("fd00:90de:d95::fa")
	ProofSource6 = netip.MustParseAddr("fd00:90de:d95::fb")
)

// OwnLinks names our own veths with both ends in the host's netns: nobody lives behind them.
func OwnLinks() []string {
	return []string{ProberInterface, FramesInterface, HairpinOut, HairpinIn}
}

// First default steering addresses; the next redirect of the family gets the next address.
var (
	firstSteering4 = netip.MustParseAddr("169.254.20.11")
	firstSteering6 = netip.MustParseAddr("fd00:90de:d95::b")
)

// ProbeSource and ProofSource are the prober's addresses of a family.
func ProbeSource(is4 bool) netip.Addr {
	if is4 {
		return ProbeSource4
	}
	return ProbeSource6
}

// ProofSource is the address whose questions always take the fallback.
func ProofSource(is4 bool) netip.Addr {
	if is4 {
		return ProofSource4
	}
	return ProofSource6
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

// Redirect pairs a cluster DNS address with the steering address that stands for it on every node. Both are of one
// family; the pairing is 1:1, since the way back is found by it.
type Redirect struct {
	ClusterDNS netip.Addr `json:"clusterDNS"`
	Steering   netip.Addr `json:"steering,omitzero"`
}

func (r Redirect) String() string { return r.ClusterDNS.String() + "=" + r.Steering.String() }

// Is4 tells the redirect's family.
func (r Redirect) Is4() bool { return r.ClusterDNS.Is4() }

// Local is a local address, which clients name themselves, and the cluster DNS address that answers for it when the
// agent does not. Both are of one family.
type Local struct {
	Address    netip.Addr `json:"address"`
	ClusterDNS netip.Addr `json:"clusterDNS"`
	// Service says that the address is a Service's own, put on the link as NodeLocal DNSCache does: what comes from beside the
	// node is left to kube-proxy, as it would be without us.
	Service bool `json:"service,omitempty"`
}

// Complete fills in each missing steering address by position in its family (169.254.20.11+i, fd00:90de:d95::b+i) and
// checks the whole: valid unicast addresses of one family per pair, no address twice. It does not modify its argument.
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
			return nil, fmt.Errorf("redirects[%d]: steering address %s and cluster DNS address %s are of different families", i, r.Steering, r.ClusterDNS)
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
			return nil, fmt.Errorf("localAddresses[%d]: no redirect of %s's family, so %s would have no fallback: add a cluster DNS address of that family or take it out", i, a, a)
		}
		for _, r := range redirects {
			if a == r.Steering || a == r.ClusterDNS {
				return nil, fmt.Errorf("localAddresses[%d]: %s is already used by redirect %s", i, a, r)
			}
		}
		if slices.ContainsFunc(out, func(l Local) bool { return l.Address == a }) {
			return nil, fmt.Errorf("localAddresses[%d]: %s stands twice", i, a)
		}
		out = append(out, Local{Address: a, ClusterDNS: redirects[at].ClusterDNS})
	}
	return out, nil
}

// CheckLocals checks local addresses that were paired with their fallback by hand: valid unicast addresses of one family per
// pair, no address twice. An address may be its own fallback where kube-proxy translates it.
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
			return fmt.Errorf("%s stands twice", l.Address)
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
	case a == ProbeSource4, a == ProofSource4, a == ProbeSource6, a == ProofSource6:
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

// Pod describes the pod table: what one pod's netns needs so that the pod's questions go to its own node.
type Pod struct {
	Redirects []Redirect // steered, in both directions
	// Always steers also what is not answered. For the prober, which must tell silence from kube-dns's answers; a pod's
	// questions are given back then (see podTrust).
	Always bool
	// Open are TCP connections that the pod had before the rules came: they keep their cluster DNS address to their end. Rules that
	// stand are not compared by them. The iptables back end needs none: its rules choose a connection's way at the SYN alone.
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
	FallbackOnly  []Redirect    // taken out of the configuration but still named by a pod: never leased, always given back
	Locals        []Local       // local addresses, from Locals()
	Uplinks       []string      // interface names from which nobody is served, from Uplinks()
	Bridges       []string      // bridges that pods may hang on; the iptables back end's affair, which finds them itself
	Exempt        []netip.Addr  // pods that opted out of interception; the plugin adds and removes them too
	InterceptNode bool          // steer also what was not steered in the pod, and host processes
	Lifetime      time.Duration // how long a lease lasts, rounded up to 20 ms; 0 means DefaultLifetime
	Secret        Secret        // of the Lease that may renew; 0: whatever stands there, or nobody's where nothing does
	// Ceded are those of our addresses at which another program's socket is served without a lease, as without us. For who
	// shares its addresses with a predecessor that may come back. The agent's own sockets there must be transparent
	// (IP_TRANSPARENT): that tells them apart, also when it hangs.
	Ceded []netip.Addr
	// OwnLocals gives the node's own processes that name a local address the fallback, too. They are steered under the lease
	// alone, so their bound after a kill is one lease lifetime.
	OwnLocals bool
	// Detours are links by which the route to a source may lead although its packets come by another. nil: those that there are
	// when the rules are made.
	Detours []string
	// HealthPort keeps what the node itself asks over TCP at this port of the local addresses out of conntrack: the kubelet's
	// probes of a cache's health. 0: nothing.
	HealthPort uint16
}

// LeaseState is a lease that stands, and for how long without another renewal.
type LeaseState struct {
	Address  netip.Addr
	Protocol Protocol
	Expires  time.Duration
}

// DriftError says in which points the kernel differs from the description. Items are for people.
type DriftError struct{ Items []string }

func (e *DriftError) Error() string { return "rules differ: " + strings.Join(e.Items, "; ") }

// ErrNotSupported marks a kernel that lacks what the rules need; the error around it names the missing piece.
var ErrNotSupported = errors.New("not supported by this kernel")
