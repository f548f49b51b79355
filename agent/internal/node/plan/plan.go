// Package plan turns a configuration into the wanted state of a node, as one value: how queries reach the agent, the link, the host's
// rules, what is probed and served, the timing of leases, and the node's lock. The agent makes a plan for each configuration, in
// node-cache mode too. The loop, a reload, a change of the back end, the doctor, `config show` and `cleanup` use it. In the agent, only it
// describes the host's rules.
//
// It is pure: it reads files, pods and links only by the arguments of Read and Host, and sends no query. The same configuration and files
// always make the same plan.
//
// Failure policy: with an error, the plan lacks only the part that is at fault. The doctor compares the node with such a plan; an agent
// does not start with it.
package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/steer"
)

// Arrangement is how queries reach the agent. All other differences between arrangements follow from it.
type Arrangement string

// The arrangements.
const (
	// Steered: pods query the cluster DNS address, and their pod tables rewrite the queries to a steering address.
	Steered Arrangement = "steered"
	// OnLink: the cluster DNS address itself is on the link (KEP-1024), so the queries of all pods and of the node's own processes arrive
	// there. kube-proxy's translation is the fallback.
	OnLink Arrangement = "on the link"
	// NodeCache: the agent replaces NodeLocal DNSCache's node-cache at its addresses, which pods and the kubelet use. If node-cache itself
	// comes back, it serves there.
	NodeCache Arrangement = "in node-cache's place"
	// Transparent: the kernel program answers hits at pods' links, and all other packets go where they would go without the agent. There is
	// no link, no rule, no lease and no fallback check (D-073).
	Transparent Arrangement = "transparent"
)

// Plan is the wanted state of a node for one configuration. Its slices and maps must not be written to.
type Plan struct {
	Arrangement Arrangement
	Backend     string // back end of the packet rules, as configured; ForBackend sets it to the one in use
	Link        Link

	Redirects     []steer.Redirect // none unless the arrangement is Steered
	Locals        []steer.Local    // addresses that clients themselves use as nameservers, each with its fallback
	InterceptNode bool
	HealthPort    uint16 // port of the kubelet's health checks at local addresses, whose connections bypass conntrack; 0: none
	// Firewall is set if the agent must make the host's filter accept DNS packets to and from its addresses.
	Firewall bool

	ClusterDomain string
	Steers        bool // false: no pod may be steered (kubeProxyMode none, or arrangement Transparent)
	Server        server.Config
	// Unserved is the reason why the agent can serve nothing yet; nil if it can. Without a server, the host's packet rules send all
	// queries to kube-dns.
	Unserved error

	Terms    Terms
	Folders  Folders
	Lock     Lock
	Warnings []string // faults in the files that were read, for the operator; shown as a fault
	External string   // the upstreams for names outside of the cluster, and how they were chosen, for the status
}

// Link is the network interface with the agent's addresses.
type Link struct {
	Name string
	// Foreign is set if another program creates the link and manages its addresses. If addresses are missing, the server's listen error
	// names them.
	Foreign bool
	// Temporary is set if the agent removes the link at an orderly stop.
	Temporary bool
}

// Terms are the times of leases and of full checks.
type Terms struct {
	Renew    time.Duration // between two probes
	Lifetime time.Duration // lifetime of a lease since its last renewal
	// Check is the time between two full checks, which run even without an event; 0 stands for 30 s. A reload does not change it.
	Check time.Duration
}

// ProbeTimeout returns how long a probe waits for its answer. It is short enough that the next probe can still renew the lease if one is
// lost.
func (t Terms) ProbeTimeout() time.Duration { return max(t.Lifetime-2*t.Renew, t.Renew) }

// Folders are the folders of the agent's files; pkg/nodestate has the files' names.
type Folders struct {
	State   string // emptied by a reboot, which ends the pods too
	Persist string // survives a reboot
}

// Lock describes the lock whose owner is the active agent of the node.
type Lock struct {
	Folder string // the folder of the lock file; "": the lock belongs to the netns and needs no shared folder
	Waits  bool   // if another agent has the lock, this one waits until that agent ends
}

// StartsUnserved reports whether an agent starts even if it cannot serve the configured Corefile. In node-cache mode it does: pods use the
// agent's addresses directly, and only the switch, which the agent makes, sends those queries to kube-dns.
func (p Plan) StartsUnserved() bool { return p.Arrangement == NodeCache }

// KernelOnly reports whether only the kernel program answers pods from the cache. The agent then has no DNS socket and writes no rules.
func (p Plan) KernelOnly() bool { return p.Arrangement == Transparent }

// Name is the arrangement's name, for people.
func (p Plan) Name() string { return string(p.Arrangement) }

// LocalAddresses returns the addresses that clients themselves use as nameservers.
func (p Plan) LocalAddresses() []netip.Addr {
	var out []netip.Addr
	for _, l := range p.Locals {
		out = append(out, l.Address)
	}
	return out
}

// Addresses returns the addresses on the link, on which the server listens: local and steering addresses.
func (p Plan) Addresses() []netip.Addr {
	out := p.LocalAddresses()
	for _, r := range p.Redirects {
		out = append(out, r.Steering)
	}
	return out
}

// Target is one address and protocol with its own lease. Queried is the address that its probes query: for a steering address, the
// cluster DNS address, which the prober's pod table rewrites; otherwise the local address itself.
type Target struct {
	Address  netip.Addr
	Queried  netip.Addr
	Protocol steer.Protocol
}

func (t Target) String() string { return t.Address.String() + "/" + t.Protocol.String() }

// Targets returns all targets of the plan.
func (p Plan) Targets() []Target {
	var out []Target
	for _, proto := range []steer.Protocol{steer.UDP, steer.TCP} {
		for _, r := range p.Redirects {
			out = append(out, Target{Address: r.Steering, Queried: r.ClusterDNS, Protocol: proto})
		}
		for _, l := range p.Locals {
			out = append(out, Target{Address: l.Address, Queried: l.Address, Protocol: proto})
		}
	}
	return out
}

// Fallback is one path to kube-dns: the address that answers there, and the one that the fallback check queries.
type Fallback struct{ ClusterDNS, Queried netip.Addr }

// Fallbacks returns one path for each cluster DNS address of the redirects and locals. For a redirect's path, the fallback check queries
// the cluster DNS address itself, because the prober's pod table rewrites that query; for a local address's path, it queries the local
// address. If both have the same cluster DNS address, the redirect's path counts.
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

// ClusterDNSOf returns the cluster DNS address that queries to one of the agent's addresses fall back to; the zero Addr
// if address is not one of them.
func (p Plan) ClusterDNSOf(address netip.Addr) netip.Addr {
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

// WithAddressesOf returns the plan for the duration of a change between two plans. It has the addresses of both, so that no address is
// removed while the server listens on it.
func (p Plan) WithAddressesOf(other Plan) Plan {
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
