package plan

import (
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/dns/server"
)

// Template is node-cache's Corefile template after its variables were filled in.
type Template struct {
	Text     string // the resulting Corefile; "" if there is a Fault
	Domain   string // the cluster's domain, as found in the template's zones; "" if none is found
	Warnings []string
	Fault    error
}

// NodeResolvConf is the path of the node's resolv.conf in a host-network pod with dnsPolicy Default.
const NodeResolvConf = "/etc/resolv.conf"

// NodeCacheUpstreams returns the input of upstream.Resolve for an agent in node-cache mode.
func NodeCacheUpstreams(o nodecache.Options, a nodecache.Answer, domain string, readFile func(string) ([]byte, error)) upstream.Input {
	return upstream.Input{
		ClusterDomain: domain, Cluster: []nameserver.Address{nameserver.At(a.Upstream)}, External: []nameserver.Source{{Path: NodeResolvConf}},
		ConfigMap: o.ConfigMap, Own: o.LocalIPs, ReadFile: readFile, AskStub: true, // node-cache, too, forwards to systemd-resolved's stub
		Terms: upstream.Terms{External: "upstreamNameservers of the kube-dns ConfigMap", Cluster: "those of -upstreamsvc",
			ConfigMap: "-kubednscm"},
	}
}

// OfNodeCache makes the plan of an agent in node-cache mode from node-cache's flags (o) and the addresses resolved from them (a). n has
// the defaults for settings without a flag. instance identifies this agent in answers to probes.
func OfNodeCache(o nodecache.Options, a nodecache.Answer, t Template, n *config.Node, instance string) Plan {
	p := Plan{
		Arrangement: NodeCache, Backend: n.Backend, Locals: a.Locals, Steers: true, Firewall: o.SetupIptables,
		Link:          Link{Name: o.Interface, Foreign: !o.SetupInterface, Temporary: o.SetupInterface && !o.SkipTeardown},
		ClusterDomain: n.ClusterDomain, Unserved: t.Fault, Warnings: t.Warnings,
		Terms: Terms{Renew: n.Lease.Renew, Lifetime: n.Lease.Lifetime, Check: o.Check},
		Lock:  Lock{Waits: true}, Folders: Folders{State: n.StateDir, Persist: n.PersistDir},
	}
	if o.SetupIptables { // node-cache writes no rules without this flag
		p.HealthPort = o.HealthPort
	}
	if t.Domain != "" {
		p.ClusterDomain = t.Domain
	}
	p.Server = server.Config{Transparent: true, Connections: n.Limits.TCPConnections, Config: corefile.Config{
		Addresses: p.Addresses(), Port: 53, ClusterDomain: p.ClusterDomain, InstanceID: instance, Binds: o.Interface,
		Override: t.Text, OverrideName: o.Template, Misses: n.Limits.Misses, FastPath: n.FastPath == config.FastPathOn,
	}}
	return p
}
