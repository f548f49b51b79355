package plan

import (
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/config/nodecache"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/dns/server"
)

// Template is what came of node-cache's Corefile template.
type Template struct {
	Text     string // filled in; "" where Fault says why there is none
	Domain   string // the cluster's, by its zones; "" where it is not known
	Warnings []string
	Fault    error
}

// NodeResolvConf is what a pod of the node's network with dnsPolicy Default has there: the node's.
const NodeResolvConf = "/etc/resolv.conf"

// AskedInPlace is what upstream.Resolve is to put together for an agent in node-cache's place; readFile reads.
func AskedInPlace(o nodecache.Options, a nodecache.Answer, domain string, readFile func(string) ([]byte, error)) upstream.Input {
	return upstream.Input{
		ClusterDomain: domain, Cluster: []nameserver.Address{nameserver.At(a.Upstream)}, External: []nameserver.Source{{Path: NodeResolvConf}},
		ConfigMap: o.ConfigMap, Own: o.LocalIPs, ReadFile: readFile, AskStub: true, // as node-cache
		Terms: upstream.Terms{External: "upstreamNameservers of the kube-dns ConfigMap", Cluster: "those of -upstreamsvc", ConfigMap: "-kubednscm"},
	}
}

// InPlace makes the plan of an agent in node-cache's place, by node-cache's flags and their answer. n are the defaults for what no
// flag says, and instance is what the prober is to be answered.
func InPlace(o nodecache.Options, a nodecache.Answer, t Template, n *config.Node, instance string) Plan {
	p := Plan{
		Arrangement: NodeCache, Backend: n.Backend, Locals: a.Locals, Steers: true, Firewall: o.SetupIptables,
		Link:          Link{Name: o.Interface, Foreign: !o.SetupInterface, Temporary: o.SetupInterface && !o.SkipTeardown},
		ClusterDomain: n.ClusterDomain, Unserved: t.Fault, Warnings: t.Warnings,
		Terms: Terms{Renew: n.Lease.Renew, Lifetime: n.Lease.Lifetime, Check: o.Check},
		Lock:  Lock{Waits: true}, Folders: Folders{State: n.StateDir, Persist: n.PersistDir},
	}
	if o.SetupIptables { // as node-cache, which writes no rule at all without
		p.HealthPort = o.HealthPort
	}
	if t.Domain != "" {
		p.ClusterDomain = t.Domain
	}
	p.Server = server.Config{Transparent: true, Connections: n.Limits.TCPConnections, Config: corefile.Config{
		Addresses: p.Addresses(), ClusterDomain: p.ClusterDomain, InstanceID: instance, Binds: o.Interface,
		Override: t.Text, OverrideName: o.Template, Misses: n.Limits.Misses, FastPath: n.FastPath == config.FastPathOn,
	}}
	return p
}
