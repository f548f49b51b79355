package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/dns"
	"github.com/neardns/neardns/agent/internal/kubedns"
	"github.com/neardns/neardns/agent/internal/nameserver"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/upstream"
	"github.com/neardns/neardns/pkg/steer"
)

// settings turns the configuration, and the files that it names, into what the node loop works by.
func settings(e env, n *config.Node, instance string) (node.Settings, upstream.Upstreams, error) {
	up, err := upstream.Resolve(upstream.Input{
		Cluster: n.Upstreams.Cluster, External: n.Upstreams.External, ExternalSet: !n.Upstreams.Auto, Auto: auto(n),
		StubDomains: n.StubDomains, ConfigMap: n.KubeDNSConfigMap, Own: n.Own(), ClusterDomain: n.ClusterDomain, ReadFile: e.readFile,
	})
	if err != nil {
		return node.Settings{}, up, err
	}
	redirects, onLink := n.Redirects, n.Link.ClusterDNSOnLink
	locals, err := steer.Locals(n.LocalAddresses, n.Redirects)
	if onLink {
		redirects = nil // pods' questions come to the address itself
		locals, err = localsOnLink(n)
	}
	if err != nil {
		return node.Settings{}, up, err
	}
	s := node.Settings{
		OwnLocals: onLink,
		Redirects: redirects, Locals: locals, ClusterDomain: n.ClusterDomain, InterceptNode: n.InterceptNode, Steers: n.Steers(),
		Link: n.Link.Name, Renew: n.Lease.Renew, Lifetime: n.Lease.Lifetime, Backend: n.Backend,
	}
	s.Warnings, s.External = up.Warnings, up.Outside()
	s.DNS = dns.Config{
		Addresses:     s.Addresses(),
		ClusterDomain: n.ClusterDomain,
		ReverseZones:  []string{"in-addr.arpa", "ip6.arpa"},
		Cluster:       up.Cluster,
		StubDomains:   up.Stub,
		External:      up.External,
		ExternalFound: up.Found,
		Cache: dns.Cache{
			Entries: n.Cache.Entries, NegativeTTL: n.Cache.NegativeTTL, ServeStale: n.Cache.ServeStale,
			NoPrefetch: !n.Cache.Prefetch, HoldDenials: n.Cache.HoldDenials,
		},
		Misses:       n.Limits.Misses,
		Connections:  n.Limits.TCPConnections,
		Queries:      dns.Queries(n.Log.Queries),
		Snippets:     n.Snippets,
		Override:     n.CorefileText,
		OverrideName: n.Corefile,
		InstanceID:   instance,
	}
	if n.Steers() && !onLink { // there the address is the agent's own
		for _, r := range n.Redirects {
			s.DNS.LastResort = append(s.DNS.LastResort, nameserver.At(r.ClusterDNS))
		}
		if n.InterceptNode {
			s.DNS.LastResortMark = steer.Mark
		}
	}
	return s, up, nil
}

// localsOnLink pairs the addresses of the KEP's arrangement: kube-proxy translates a cluster DNS address on our link while
// nothing keeps it from that, and a local address has the second Service to fall back to.
func localsOnLink(n *config.Node) ([]steer.Local, error) {
	var out []steer.Local
	for _, r := range n.Redirects {
		out = append(out, steer.Local{Address: r.ClusterDNS, ClusterDNS: r.ClusterDNS, Service: true})
	}
	for i, a := range n.LocalAddresses {
		at := slices.IndexFunc(n.Upstreams.Cluster, func(u nameserver.Address) bool { return u.Addr.Addr().Is4() == a.Is4() })
		if at < 0 {
			return nil, fmt.Errorf("localAddresses[%d]: upstreams.cluster has no address of %s's family, so %s would have no fallback: add one, or take it out", i, a, a)
		}
		out = append(out, steer.Local{Address: a, ClusterDNS: n.Upstreams.Cluster[at].Addr.Addr()})
	}
	return out, steer.CheckLocals(out)
}

// auto is how kube-dns's Corefile is asked about the rest, where it is to be.
func auto(n *config.Node) *upstream.Auto {
	if !n.Upstreams.Auto {
		return nil
	}
	return &upstream.Auto{Corefile: n.Upstreams.Corefile, NodeFile: n.Upstreams.NodeFile, Judge: func(text string) (bool, string) {
		v := kubedns.Read(text, n.ClusterDomain)
		return v.Node, v.Why
	}}
}

// probeSources are whom the probe plugin answers.
func probeSources() []netip.Addr { return []netip.Addr{steer.ProbeSource4, steer.ProbeSource6} }
