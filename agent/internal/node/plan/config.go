package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/kubedns"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/steer"
)

// Read makes the plan of a NodeConfig and of the files that it names, which it reads with readFile. instance is the text that this agent
// returns in answers to probes. The returned Upstreams are the servers that the plan forwards to, how they were chosen, and the files to
// watch.
func Read(n *config.Node, readFile func(string) ([]byte, error), instance string) (Plan, upstream.Upstreams, error) {
	in := upstream.Input{
		Cluster: n.Upstreams.Cluster, External: n.Upstreams.External, ExternalSet: !n.Upstreams.Auto, Auto: auto(n),
		StubDomains: n.StubDomains, ConfigMap: n.KubeDNSConfigMap, Own: n.Own(), ClusterDomain: n.ClusterDomain, ReadFile: readFile,
	}
	up, err := upstream.Resolve(in)
	p, planErr := Of(n, up, instance)
	return p, up, cmp.Or(err, planErr) // the plan's error shows once the upstreams are right
}

// Of makes the plan from a NodeConfig and its upstreams up, and reads no file. instance identifies this agent in answers to probes.
func Of(n *config.Node, up upstream.Upstreams, instance string) (Plan, error) {
	p := Plan{
		Arrangement: Steered, Backend: n.Backend, Link: Link{Name: n.Link.Name}, Redirects: n.Redirects,
		InterceptNode: n.InterceptNode && n.Steer.Mode != config.SteerNone, Firewall: true,
		ClusterDomain: n.ClusterDomain, Steers: n.Steers(), Terms: Terms{Renew: n.Lease.Renew, Lifetime: n.Lease.Lifetime},
		Folders: Folders{State: n.StateDir, Persist: n.PersistDir}, Lock: Lock{Folder: n.StateDir}, Warnings: up.Warnings, External: up.Outside(),
	}
	var err error
	if n.KernelAlone() {
		p.Arrangement, p.Redirects, p.Steers, p.Firewall = Transparent, nil, false, false
	} else if n.Link.ClusterDNSOnLink {
		p.Arrangement, p.Redirects = OnLink, nil // pods' queries arrive at the cluster DNS address itself, which is on the link
		p.Locals, err = localsOnLink(n)
	} else {
		p.Locals, err = steer.Locals(n.LocalAddresses, n.Redirects)
	}
	p.Server = server.Config{Connections: n.Limits.TCPConnections, Config: corefile.Config{
		Addresses:     p.Addresses(),
		Port:          53,
		ClusterDomain: n.ClusterDomain,
		Cluster:       up.Cluster,
		StubDomains:   up.Stub,
		External:      up.External,
		Cache: corefile.Cache{
			Entries: n.Cache.Entries, NegativeTTL: n.Cache.NegativeTTL, ServeStale: n.Cache.ServeStale,
			NoPrefetch: !n.Cache.Prefetch, HoldDenials: n.Cache.HoldDenials,
		},
		Misses:       n.Limits.Misses,
		FastPath:     n.FastPath == config.FastPathOn,
		Queries:      corefile.Queries(n.Log.Queries),
		Snippets:     n.Snippets,
		Override:     n.CorefileText,
		OverrideName: n.Corefile,
		InstanceID:   instance,
	}}
	if p.KernelOnly() {
		p.Server.Addresses, p.Server.Deaf = []netip.Addr{nowhere}, true
	}
	if p.Steers && p.Arrangement == Steered { // in arrangement OnLink, the agent itself has the cluster DNS address
		for _, r := range p.Redirects {
			p.Server.LastResort = append(p.Server.LastResort, nameserver.At(r.ClusterDNS))
		}
		if p.InterceptNode {
			p.Server.LastResortMark = steer.Mark
		}
	}
	return p, err
}

// nowhere is a placeholder for the address of a Corefile server that does not listen, because the agent calls it directly.
var nowhere = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// localsOnLink returns the local addresses of arrangement OnLink, each with its fallback. A cluster DNS address on the link falls back to
// itself: if the switch lets a packet to it pass, kube-proxy translates the address. A local address falls back to the second Service
// (upstreams.cluster).
func localsOnLink(n *config.Node) ([]steer.Local, error) {
	var out []steer.Local
	for _, r := range n.Redirects {
		out = append(out, steer.Local{Address: r.ClusterDNS, ClusterDNS: r.ClusterDNS, Service: true})
	}
	for i, a := range n.LocalAddresses {
		at := slices.IndexFunc(n.Upstreams.Cluster, func(u nameserver.Address) bool { return u.Addr.Addr().Is4() == a.Is4() })
		if at < 0 {
			return out, fmt.Errorf("localAddresses[%d]: upstreams.cluster has no address of %s's family, so %s would have no fallback: "+
				"add one, or take it out", i, a, a)
		}
		out = append(out, steer.Local{Address: a, ClusterDNS: n.Upstreams.Cluster[at].Addr.Addr()})
	}
	return out, steer.CheckLocals(out)
}

// auto returns the settings by which kube-dns's Corefile decides the upstreams for names outside of the cluster; nil if the configuration
// lists these upstreams.
func auto(n *config.Node) *upstream.Auto {
	if !n.Upstreams.Auto {
		return nil
	}
	return &upstream.Auto{Corefile: n.Upstreams.Corefile, NodeFile: n.Upstreams.NodeFile, Judge: func(text string) (bool, string) {
		v := kubedns.Read(text, n.ClusterDomain)
		return v.Node, v.Why
	}}
}
