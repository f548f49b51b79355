// Package plan says what a node should be, as one value: how questions come to the agent, the link, the host's rules, what is
// probed, what is served, on which terms leases are held and by which lock the node is taken. Both roles make it, once for each
// configuration. The loop, a reload, a change of the back end, the doctor, `config show` and `cleanup` take it, and nobody else
// describes the host's rules.
//
// It must never open a file, look at the kernel or ask anybody: what was read comes as an argument, so that the same
// configuration and the same files make the same plan, and a test can print it.
//
// Failure policy: with an error, a plan is what can be told without the part that is at fault. The doctor compares a node with
// that; an agent does not start by it.
package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/steer"
)

// Arrangement is how questions come to the agent. All that differs between arrangements follows from this word.
type Arrangement string

// The arrangements.
const (
	// Steered: pods name the cluster DNS address, and their pod tables send what they ask to a steering address.
	Steered Arrangement = "steered"
	// OnLink: the cluster DNS address itself is on the link (KEP-1024), so that every pod's questions arrive there, and those of
	// the node's own processes, too. kube-proxy's translation is the fallback.
	OnLink Arrangement = "on the link"
	// NodeCache: the agent stands in the place of NodeLocal DNSCache's node-cache, at its addresses. Pods and the kubelet name
	// them, and node-cache itself may come back: then it is served there.
	NodeCache Arrangement = "in node-cache's place"
	// Transparent: the kernel's program answers hits at pods' links, and everything else goes where it goes without the agent. There is
	// no link, no rule, no lease and nothing to prove (D-073).
	Transparent Arrangement = "transparent"
)

// Plan is what one configuration makes of a node. It is a value: whoever takes it must not write into its slices and maps.
type Plan struct {
	Arrangement Arrangement
	Backend     string // of the rules, as it was asked for; On makes it the one in use
	Link        Link

	Redirects     []steer.Redirect // none unless the arrangement is Steered
	Locals        []steer.Local    // addresses that clients name, each with who answers when the agent does not
	InterceptNode bool
	HealthPort    uint16 // where the kubelet asks at the local addresses, untracked; 0: nowhere
	// Firewall keeps our addresses accepted in iptables' filter table where its policy drops.
	Firewall bool

	ClusterDomain string
	Steers        bool // false: nothing on this node translates the cluster DNS address, so nothing may be steered
	Server        server.Config
	// Unserved is why there is nothing to serve yet. The switch alone keeps pods going then.
	Unserved error

	Terms    Terms
	Folders  Folders
	Lock     Lock
	Warnings []string // what somebody should mend in what was read; shown as a fault
	External string   // who answers for names outside of the cluster, and why; to be shown
}

// Link is the interface of our addresses.
type Link struct {
	Name string
	// Foreign: somebody else makes it and keeps its addresses. Where they are missing, listening fails and says so.
	Foreign bool
	// Temporary: it goes with an orderly end.
	Temporary bool
}

// Terms are those of the leases, and how often all is looked at.
type Terms struct {
	Renew    time.Duration // from one probe to the next
	Lifetime time.Duration // how long a lease outlives the last proof
	Check    time.Duration // from one look at everything to the next, whether or not an event said so; 0: 30 s. Only a start reads it
}

// Patience is how long a probe waits for its answer: so that the one after a lost one can still renew in time.
func (t Terms) Patience() time.Duration { return max(t.Lifetime-2*t.Renew, t.Renew) }

// Folders are where the agent's files are. pkg/nodestate has their names.
type Folders struct {
	State   string // gone at a reboot, as pods are
	Persist string // survives it
}

// Lock is the right of one agent to the node.
type Lock struct {
	Folder string // whose file is locked; "": the right belongs to the netns, and no folder has to be shared
	Waits  bool   // where another agent has it, this one stands by for its end
}

// StartsUnserved tells whether an agent is to begin, too, where the server's configuration cannot be served. In node-cache's place pods
// name our addresses, and the switch there is all that they have.
func (p Plan) StartsUnserved() bool { return p.Arrangement == NodeCache }

// KernelAlone tells whether the kernel's program is all that the node has of the cache: the agent listens nowhere and keeps no rule.
func (p Plan) KernelAlone() bool { return p.Arrangement == Transparent }

// Name is the arrangement's, for people.
func (p Plan) Name() string { return string(p.Arrangement) }

// LocalAddresses are those that clients name.
func (p Plan) LocalAddresses() []netip.Addr {
	var out []netip.Addr
	for _, l := range p.Locals {
		out = append(out, l.Address)
	}
	return out
}

// Addresses are what the link holds and the server listens on: local and steering addresses.
func (p Plan) Addresses() []netip.Addr {
	out := p.LocalAddresses()
	for _, r := range p.Redirects {
		out = append(out, r.Steering)
	}
	return out
}

// Target is one address and protocol that holds a lease of its own, and the address that the prober asks to prove it: the
// cluster DNS address for a steering address (the prober's pod table does the rest), the local address itself otherwise.
type Target struct {
	Address  netip.Addr
	Asked    netip.Addr
	Protocol steer.Protocol
}

func (t Target) String() string { return t.Address.String() + "/" + t.Protocol.String() }

// Targets lists what is probed.
func (p Plan) Targets() []Target {
	var out []Target
	for _, proto := range []steer.Protocol{steer.UDP, steer.TCP} {
		for _, r := range p.Redirects {
			out = append(out, Target{Address: r.Steering, Asked: r.ClusterDNS, Protocol: proto})
		}
		for _, l := range p.Locals {
			out = append(out, Target{Address: l.Address, Asked: l.Address, Protocol: proto})
		}
	}
	return out
}

// Fallback is one way back to kube-dns: the address that answers there, and the one that is asked to prove it.
type Fallback struct{ ClusterDNS, Asked netip.Addr }

// Fallbacks lists them, each once: a cluster DNS address is asked itself, where the prober has a pod table; what stands only
// behind a local address, by way of that.
func (p Plan) Fallbacks() []Fallback {
	var out []Fallback
	add := func(clusterDNS, asked netip.Addr) {
		if !slices.ContainsFunc(out, func(f Fallback) bool { return f.ClusterDNS == clusterDNS }) {
			out = append(out, Fallback{clusterDNS, asked})
		}
	}
	for _, r := range p.Redirects {
		add(r.ClusterDNS, r.ClusterDNS)
	}
	for _, l := range p.Locals {
		add(l.ClusterDNS, l.Address)
	}
	return out
}

// WayOf is the cluster DNS address that answers what is not delivered to an address of ours.
func (p Plan) WayOf(address netip.Addr) netip.Addr {
	for _, r := range p.Redirects {
		if r.Steering == address {
			return r.ClusterDNS
		}
	}
	for _, l := range p.Locals {
		if l.Address == address {
			return l.ClusterDNS
		}
	}
	return netip.Addr{}
}

// Beside is the plan of the time between two: the addresses of both, so that none is taken away before its lease is.
func (p Plan) Beside(other Plan) Plan {
	p.Redirects = union(p.Redirects, other.Redirects)
	p.Locals = union(p.Locals, other.Locals)
	return p
}

func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
