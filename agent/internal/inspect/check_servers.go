package inspect

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/resolvconf"
)

// queryResult is the result of the doctor's check of one server.
type queryResult struct {
	server string
	addr   netip.Addr
	role   string // what the server is for: cluster, external, a stub domain, fallback
	took   time.Duration
	err    error // nil if the server answered
}

// resolvConf is one resolv.conf file that names upstreams.
type resolvConf struct {
	path    string
	servers []netip.Addr
	err     error
}

// queryServers sends a query to every upstream, and to each redirect's cluster DNS address as the host's own processes would, all
// concurrently.
func (in *Inspector) queryServers(ctx context.Context, want plan.Plan, up upstream.Upstreams) (upstreams, fallbacks []*queryResult) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	send := func(list *[]*queryResult, role string, q query, servers ...nameserver.Address) {
		for _, s := range servers {
			r := &queryResult{server: s.String(), addr: s.Addr.Addr(), role: role}
			*list = append(*list, r)
			wg.Go(func() {
				begun := time.Now()
				r.err = q.answers(ctx, s)
				r.took = time.Since(begun)
			})
		}
	}
	cluster := query{name: "kubernetes.default.svc." + in.Conf.ClusterDomain + ".", qtype: dns.TypeA}
	for _, r := range want.Redirects {
		send(&fallbacks, "fallback", cluster, nameserver.At(r.ClusterDNS))
	}
	cluster.tcp = true // the agent also queries these over TCP
	send(&upstreams, "cluster", cluster, up.Cluster...)
	send(&upstreams, "external", query{name: ".", qtype: dns.TypeNS}, up.External...)
	for _, domain := range slices.Sorted(maps.Keys(up.Stub)) {
		send(&upstreams, "stub domain "+domain, query{name: domain + ".", qtype: dns.TypeA}, up.Stub[domain]...)
	}
	return upstreams, fallbacks
}

// resolvConf reads the resolv.conf files that name upstreams.
func (in *Inspector) resolvConf(up upstream.Upstreams) (out []resolvConf) {
	var paths []string
	if up.By == upstream.ByNode {
		paths = append(paths, in.Conf.Upstreams.NodeFile)
	}
	for _, e := range in.Conf.Upstreams.External {
		if e.Path != "" {
			paths = append(paths, e.Path)
		}
	}
	for _, path := range paths {
		r := resolvConf{path: path}
		data, err := in.ReadFile(path)
		settings, _ := resolvconf.Parse(data).Settings() // lines with a fault are left out
		for _, s := range settings.Nameservers {
			if a, err := netip.ParseAddr(s); err == nil {
				r.servers = append(r.servers, a)
			}
		}
		if r.err = err; err == nil && len(r.servers) == 0 {
			r.err = errors.New(path + " names no server")
		}
		out = append(out, r)
	}
	return out
}

func checkUpstreams(f *facts, r *findings) string {
	for _, u := range f.upstreams {
		if u.err != nil {
			r.fail("check that server and the path to it; the cache serves its entries meanwhile, for as long as cache.serveStale allows",
				"%s (%s) does not answer: %s", u.server, u.role, u.err)
		} else {
			r.ok("%s (%s) answers in %s", u.server, u.role, u.took.Round(time.Millisecond))
		}
	}
	if why := f.agent.CannotAsk; why != "" {
		r.fail(remedyForUpstreams(f, why), "%s", why)
	}
	reported := false
	for _, u := range f.agent.Upstreams {
		const do = "check that server: the others get the queries meanwhile"
		if u.Failing {
			r.warn(do, "the agent reports: %s fails (%s)", u.Server, u.Reason)
		}
		if len(u.Loops) > 0 {
			r.warn(do, "the agent reports: %s leads back to this node for %s", u.Server, strings.Join(u.Loops, ", "))
		}
		reported = reported || u.Failing || len(u.Loops) > 0
	}
	if w := f.agent.Faults["upstreams"]; w != "" && !reported {
		r.warn("check what it names", "the agent reports: %s", w)
	}
	if len(r.list) == 0 && len(f.faults) == 0 {
		r.warn("name some in the configuration", "there are none")
	}
	if f.want.External != "" {
		r.ok("names outside of the cluster: %s", f.want.External)
	}
	return ""
}

// remedyForUpstreams returns what to do if the agent cannot query kube-dns from the node itself. It infers the cause from the error text
// and from whether the fallback works.
func remedyForUpstreams(f *facts, why string) string {
	works := func(b plan.Fallback) bool { return f.agent.Faults["fallback "+b.ClusterDNS.String()] == "" }
	verified := slices.ContainsFunc(f.want.Fallbacks(), works)
	switch {
	case strings.Contains(why, "not permitted"):
		return "let the host itself query kube-dns: its firewall's OUTPUT drops udp and tcp port 53 to the cluster DNS address or to " +
			"kube-dns's pods (`nft list ruleset`, `iptables -S OUTPUT`)"
	case strings.Contains(why, "unreachable"), strings.Contains(why, "no route to host"):
		return "give the host a route to the cluster DNS address: a default route, or one for the Service range by the link that pods' " +
			"packets leave by (see `ip route get`)"
	case verified && strings.Contains(why, "REFUSED"):
		return "let kube-dns answer the node's own address: its Corefile's acl admits pods only"
	case verified:
		return "let the host itself query kube-dns, as its pods may: find a policy on kube-dns that admits pods and not nodes, and check " +
			"the host firewall's OUTPUT"
	}
	return "check kube-dns: it answers neither this node nor the agent's probes. If it answers pods, a policy on it admits pods and " +
		"not nodes: admit the nodes' addresses, too"
}

// noUpstream reports whether no server for the cluster's names can be queried, according to the agent's status or to the doctor's own
// queries.
func (f *facts) noUpstream() bool {
	if f.agent.CannotAsk != "" {
		return true
	}
	queried := false
	for _, r := range slices.Concat(f.upstreams, f.fallbacks) { // kube-dns, reached by the fallback, is the upstream of last resort
		if r.role == "cluster" || r.role == "fallback" {
			if r.err == nil {
				return false
			}
			queried = queried || r.role == "cluster"
		}
	}
	return queried
}

func checkResolvConf(f *facts, r *findings) string {
	for _, file := range f.resolv {
		var silent []string
		for _, s := range file.servers {
			answered := slices.ContainsFunc(f.upstreams, func(u *queryResult) bool { return u.addr == s && u.err == nil })
			if s.IsLoopback() && !answered {
				silent = append(silent, s.String())
			}
		}
		switch {
		case file.err != nil:
			r.fail("correct the file, or name servers in upstreams.external", "%s", file.err)
		case len(silent) > 0:
			r.warn("start it, and give the agent the host's network; or name /run/systemd/resolve/resolv.conf in upstreams.external",
				"%s names %s, a resolver on this node (systemd-resolved, dnsmasq), which does not answer", file.path, strings.Join(silent, ", "))
		default:
			r.ok("%s names %s", file.path, cli.Plural(len(file.servers), "server"))
		}
	}
	if len(f.resolv) == 0 {
		r.ok("no such file names upstreams")
	}
	return ""
}
