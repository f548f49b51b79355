package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/neardns/neardns/agent/internal/nameserver"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/steer"
)

// field is one key of NodeConfig: how it is read, how it is shown, and whether the agent takes a new value over while it
// runs. The table of them is the only list of keys; reading, `config show` and Diff all go by it.
type field struct {
	name   string // with its group: cache.entries
	reload bool
	set    func(d *decoder, name string, v ast.Node)
	show   func(n *Node) any // what stands in YAML; nil: left out
}

// table lists the fields in the order in which they are shown. Those of a group stand together.
func table() []field {
	const reload, restart = true, false
	return []field{
		fixed("apiVersion", APIVersion),
		fixed("kind", Kind),
		text("clusterDomain", reload, func(n *Node) *string { return &n.ClusterDomain }, parseDomain),
		redirects("redirects", reload),
		list("localAddresses", reload, func(n *Node) *[]netip.Addr { return &n.LocalAddresses }, parseAddr, netip.Addr.String, false),
		boolean("interceptNode", reload, func(n *Node) *bool { return &n.InterceptNode }),
		list("upstreams.cluster", reload, func(n *Node) *[]nameserver.Address { return &n.Upstreams.Cluster }, parseServer, nameserver.Address.Short, true),
		external("upstreams.external", reload),
		text("upstreams.kubeDNSCorefile", reload, func(n *Node) *string { return &n.Upstreams.Corefile }, parsePath),
		text("upstreams.nodeResolvConf", reload, func(n *Node) *string { return &n.Upstreams.NodeFile }, parsePath),
		stubDomains("stubDomains", reload),
		text("kubeDNSConfigMap", reload, func(n *Node) *string { return &n.KubeDNSConfigMap }, parsePath),
		number("cache.entries", reload, func(n *Node) *int { return &n.Cache.Entries }),
		duration("cache.negativeTTL", reload, func(n *Node) *time.Duration { return &n.Cache.NegativeTTL }),
		duration("cache.serveStale", reload, func(n *Node) *time.Duration { return &n.Cache.ServeStale }),
		number("cache.memoryMiB", reload, func(n *Node) *int { return &n.Cache.MemoryMiB }),
		boolean("cache.prefetch", reload, func(n *Node) *bool { return &n.Cache.Prefetch }),
		duration("cache.holdDenials", reload, func(n *Node) *time.Duration { return &n.Cache.HoldDenials }),
		number("limits.misses", reload, func(n *Node) *int { return &n.Limits.Misses }),
		number("limits.tcpConnections", reload, func(n *Node) *int { return &n.Limits.TCPConnections }),
		duration("lease.renew", reload, func(n *Node) *time.Duration { return &n.Lease.Renew }),
		duration("lease.lifetime", reload, func(n *Node) *time.Duration { return &n.Lease.Lifetime }),
		text("link.name", restart, func(n *Node) *string { return &n.Link.Name }, parseLinkName),
		boolean("link.clusterDNSOnLink", restart, func(n *Node) *bool { return &n.Link.ClusterDNSOnLink }),
		text("backend", restart, func(n *Node) *string { return &n.Backend }, oneOf(BackendAuto, BackendNftables, BackendIptables, BackendIptablesNFT, BackendIptablesLegacy)),
		text("kubeProxyMode", reload, func(n *Node) *string { return &n.KubeProxyMode },
			oneOf(KubeProxyAuto, KubeProxyIptables, KubeProxyIPVS, KubeProxyNftables, KubeProxyNone)),
		listen("listen.metrics", restart, func(n *Node) *netip.AddrPort { return &n.Listen.Metrics }),
		listen("listen.health", restart, func(n *Node) *netip.AddrPort { return &n.Listen.Health }),
		boolean("listen.namespaces", restart, func(n *Node) *bool { return &n.Listen.Namespaces }),
		logLevel("log.level", reload),
		text("log.format", reload, func(n *Node) *string { return &n.Log.Format }, oneOf(LogText, LogJSON)),
		text("log.queries", reload, func(n *Node) *string { return &n.Log.Queries }, oneOf(QueriesOff, QueriesErrors, QueriesAll)),
		podDNS("podDNS", reload),
		text("resolvConf.mode", restart, func(n *Node) *string { return &n.ResolvConf.Mode }, oneOf(conflist.ResolvConfAuto, conflist.ResolvConfOff)),
		list("resolvConf.paths", restart, func(n *Node) *[]string { return &n.ResolvConf.Paths }, parsePattern, func(s string) string { return s }, false),
		text("resolvConf.host", reload, func(n *Node) *string { return &n.ResolvConf.Host }, parsePath),
		nri("resolvConf.nri", restart),
		text("stateDir", restart, func(n *Node) *string { return &n.StateDir }, parsePath),
		text("persistDir", restart, func(n *Node) *string { return &n.PersistDir }, parsePath),
		text("corefile", reload, func(n *Node) *string { return &n.Corefile }, parsePath),
		snippets("snippets", reload),
	}
}

func names() []string {
	var out []string
	for _, f := range table() {
		out = append(out, f.name)
	}
	return out
}

// groups lists every proper prefix of a field's name: upstreams, cache.
func groups() []string {
	var out []string
	for _, name := range names() {
		for i, c := range name {
			if c == '.' && !slices.Contains(out, name[:i]) {
				out = append(out, name[:i])
			}
		}
	}
	return out
}

// fixed is a field that has one right value.
func fixed(name, value string) field {
	return field{name: name,
		set: func(d *decoder, name string, v ast.Node) {
			if s, ok := d.text(name, v, value); ok && s != value {
				d.fail(v, name, "is %q: write %s, the only one that is known here", s, value)
			}
		},
		show: func(*Node) any { return value }}
}

// text is a field of text whose parse also brings it into its one form.
func text(name string, reload bool, at func(*Node) *string, parse func(string) (string, error)) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			if s, ok := d.text(name, v, "text"); ok {
				if out, err := parse(s); err != nil {
					d.fail(v, name, "%v", err)
				} else {
					*at(d.node) = out
				}
			}
		},
		show: func(n *Node) any {
			if *at(n) == "" {
				return nil
			}
			return *at(n)
		}}
}

func boolean(name string, reload bool, at func(*Node) *bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			if b, ok := v.(*ast.BoolNode); ok {
				*at(d.node) = b.Value
				return
			}
			d.wrong(name, v, "true or false, without quotes")
		},
		show: func(n *Node) any { return *at(n) }}
}

func number(name string, reload bool, at func(*Node) *int) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			i, ok := v.(*ast.IntegerNode)
			if !ok {
				d.wrong(name, v, "a whole number, without quotes")
				return
			}
			switch x := i.Value.(type) {
			case int64:
				*at(d.node) = int(x)
			case uint64:
				*at(d.node) = int(min(x, 1<<62)) // far beyond every bound, which Validate will say
			}
		},
		show: func(n *Node) any { return *at(n) }}
}

func duration(name string, reload bool, at func(*Node) *time.Duration) field {
	const want = "a time with its unit, such as 150ms, 5s or 1h"
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			s, ok := d.text(name, v, want)
			if !ok {
				return
			}
			t, err := time.ParseDuration(s)
			if err != nil {
				d.fail(v, name, "%q is not a time: write %s", s, want)
				return
			}
			*at(d.node) = t
		},
		show: func(n *Node) any { return showDuration(*at(n)) }}
}

// list is a field that holds a list of one kind of text. quiet leaves an empty one out of what is shown.
func list[T any](name string, reload bool, at func(*Node) *[]T, parse func(string) (T, error), print func(T) string, quiet bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) { *at(d.node) = elements(d, name, v, parse) },
		show: func(n *Node) any {
			if quiet && len(*at(n)) == 0 {
				return nil
			}
			return each(*at(n), print)
		}}
}

// elements reads a list of text, element by element, so that each fault names its own.
func elements[T any](d *decoder, name string, v ast.Node, parse func(string) (T, error)) []T {
	out := []T{}
	for i, e := range d.list(name, v, "a list, such as [a, b]") {
		at := fmt.Sprintf("%s[%d]", name, i)
		d.node.at[at] = place(d.file, e)
		s, ok := d.text(at, e, "text")
		if !ok {
			continue
		}
		value, err := parse(s)
		if err != nil {
			d.fail(e, at, "%v", err)
			continue
		}
		out = append(out, value)
	}
	return out
}

func each[T any](values []T, print func(T) string) []string {
	out := []string{}
	for _, v := range values {
		out = append(out, print(v))
	}
	return out
}

// auto is the word for upstreams.external that leaves it to kube-dns's Corefile.
const auto = "auto"

// external takes a list, or auto.
func external(name string, reload bool) field {
	const want = "auto, or a list of servers and files, such as [10.1.2.3, /etc/resolv.conf]"
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			if s, ok := v.(*ast.StringNode); ok {
				if s.Value != auto {
					d.fail(v, name, "%q is not known: write %s", s.Value, want)
				}
				d.node.Upstreams.Auto, d.node.Upstreams.External = true, nil
				return
			}
			if _, ok := v.(*ast.SequenceNode); !ok {
				d.wrong(name, v, want)
				return
			}
			d.node.Upstreams.Auto, d.node.Upstreams.External = false, elements(d, name, v, parseSource)
		},
		show: func(n *Node) any {
			if n.Upstreams.Auto {
				return auto
			}
			return each(n.Upstreams.External, nameserver.Source.String)
		}}
}

// redirects takes pairs, and for the common case an address alone.
func redirects(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			for i, e := range d.list(name, v, "a list, such as [10.96.0.10], or of clusterDNS and steering") {
				at := fmt.Sprintf("%s[%d]", name, i)
				d.node.at[at] = place(d.file, e)
				d.node.Redirects = append(d.node.Redirects, redirect(d, at, e))
			}
		},
		show: func(n *Node) any {
			out := []yaml.MapSlice{}
			for _, r := range n.Redirects {
				m := yaml.MapSlice{{Key: "clusterDNS", Value: r.ClusterDNS.String()}}
				if r.Steering.IsValid() {
					m = append(m, yaml.MapItem{Key: "steering", Value: r.Steering.String()})
				}
				out = append(out, m)
			}
			return out
		}}
}

func redirect(d *decoder, at string, v ast.Node) (r steer.Redirect) {
	if v.Type() == ast.StringType {
		r.ClusterDNS = d.addr(at, v)
		return r
	}
	if v.Type() != ast.MappingType && v.Type() != ast.MappingValueType {
		d.wrong(at, v, "an address, such as 10.96.0.10, or clusterDNS and steering")
		return r
	}
	defer func() {
		if _, ok := d.node.at[join(at, "clusterDNS")]; !ok {
			d.fail(v, at, "has no clusterDNS: write the address of the Service kube-dns")
		}
	}()
	for _, p := range d.pairs(at, v) {
		name := join(at, p.key)
		d.node.at[name] = place(d.file, p.value)
		switch p.key {
		case "clusterDNS":
			r.ClusterDNS = d.addr(name, p.value)
		case "steering":
			r.Steering = d.addr(name, p.value)
		default:
			d.strange(p, at, suggest(p.key, []string{"clusterDNS", "steering"}))
		}
	}
	return r
}

func (d *decoder) addr(name string, v ast.Node) netip.Addr {
	s, ok := d.text(name, v, "an address, such as 10.96.0.10")
	if !ok {
		return netip.Addr{}
	}
	a, err := parseAddr(s)
	if err != nil {
		d.fail(v, name, "%v", err)
	}
	return a
}

func stubDomains(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			d.node.StubDomains = map[string][]nameserver.Address{}
			for _, p := range d.pairs(name, v) {
				at := fmt.Sprintf("%s[%s]", name, p.key)
				d.node.at[at] = place(d.file, p.name)
				domain, ok := d.domain(at, p, func(s string) bool { _, ok := d.node.StubDomains[s]; return ok })
				if ok && d.given(at, p.value) {
					d.node.StubDomains[domain] = elements(d, at, p.value, parseServer)
				}
			}
		},
		show: func(n *Node) any {
			if len(n.StubDomains) == 0 {
				return nil
			}
			out := yaml.MapSlice{}
			for _, domain := range sortedKeys(n.StubDomains) {
				out = append(out, yaml.MapItem{Key: domain, Value: each(n.StubDomains[domain], nameserver.Address.Short)})
			}
			return out
		}}
}

// snippets are not searched for ${NAME}: a Corefile has its own form of it, {$NAME}, and regular expressions besides.
func snippets(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			d.node.Snippets = map[string]string{}
			for _, p := range d.pairs(name, v) {
				at := fmt.Sprintf("%s[%s]", name, p.key)
				d.node.at[at] = place(d.file, p.name)
				zone, ok := ".", p.key == "."
				if !ok {
					zone, ok = d.domain(at, p, func(s string) bool { _, ok := d.node.Snippets[s]; return ok })
				}
				if !ok || !d.given(at, p.value) {
					continue
				}
				if s, ok := d.raw(at, p.value, "lines of a Corefile, after |"); ok {
					d.node.Snippets[zone] = s
				}
			}
		},
		show: func(n *Node) any {
			if len(n.Snippets) == 0 {
				return nil
			}
			out := yaml.MapSlice{}
			for _, zone := range sortedKeys(n.Snippets) {
				out = append(out, yaml.MapItem{Key: zone, Value: n.Snippets[zone]})
			}
			return out
		}}
}

// domain reads a key that is a domain. Two spellings of one domain are one domain, twice.
func (d *decoder) domain(at string, p pair, taken func(string) bool) (string, bool) {
	domain, err := parseDomain(p.key)
	if err != nil {
		d.fail(p.name, at, "%v", err)
		return "", false
	}
	if taken(domain) {
		d.fail(p.name, at, "%s stands twice: keep one", domain)
		return "", false
	}
	return domain, true
}

func listen(name string, reload bool, at func(*Node) *netip.AddrPort) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			if s, ok := d.text(name, v, "address:port, or off"); ok {
				a, err := parseListen(s)
				if err != nil {
					d.fail(v, name, "%v", err)
				}
				*at(d.node) = a
			}
		},
		show: func(n *Node) any {
			if !at(n).IsValid() {
				return "off"
			}
			return at(n).String()
		}}
}

func logLevel(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			s, ok := d.text(name, v, "debug, info, warn or error")
			if !ok {
				return
			}
			if _, err := oneOf("debug", "info", "warn", "error")(s); err != nil {
				d.fail(v, name, "%v", err)
				return
			}
			// slog knows exactly these four names.
			_ = d.node.Log.Level.UnmarshalText([]byte(s))
		},
		show: func(n *Node) any { return strings.ToLower(n.Log.Level.String()) }}
}
