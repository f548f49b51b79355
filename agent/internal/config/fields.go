package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

// field describes one key of NodeConfig: how to read and to show it, and whether a running agent can take a new value.
type field struct {
	name   string // with its group: cache.entries
	reload bool
	set    func(d *decoder, v strict.Value)
	show   func(n *Node) any    // the value in YAML; nil: left out
	check  func(n *Node) string // what is wrong with the value by itself; "": nothing. nil: nothing can be
}

// table returns the fields in the order in which they are shown. Fields of one group are adjacent.
func table() []field {
	const reload, restart = true, false
	return []field{
		fixed("apiVersion", APIVersion),
		fixed("kind", Kind),
		text("arrangement", restart, func(n *Node) *string { return &n.Arrangement }, configfile.OneOf(ArrangementSteered,
			ArrangementTransparent)),
		text("clusterDomain", reload, func(n *Node) *string { return &n.ClusterDomain }, configfile.ParseDomain),
		redirects("redirects", reload),
		list("localAddresses", reload, func(n *Node) *[]netip.Addr { return &n.LocalAddresses }, configfile.ParseAddr, netip.Addr.String, false),
		boolean("interceptNode", reload, func(n *Node) *bool { return &n.InterceptNode }),
		list("upstreams.cluster", reload, func(n *Node) *[]nameserver.Address { return &n.Upstreams.Cluster }, configfile.ParseServer,
			nameserver.Address.Short, true),
		external("upstreams.external", reload),
		text("upstreams.kubeDNSCorefile", reload, func(n *Node) *string { return &n.Upstreams.Corefile }, configfile.ParsePath),
		text("upstreams.nodeResolvConf", reload, func(n *Node) *string { return &n.Upstreams.NodeFile }, configfile.ParsePath),
		stubDomains("stubDomains"),
		text("kubeDNSConfigMap", reload, func(n *Node) *string { return &n.KubeDNSConfigMap }, configfile.ParsePath),
		number("cache.entries", reload, func(n *Node) *int { return &n.Cache.Entries }, 1024, 1_000_000,
			"an entry takes about a quarter of a kilobyte"),
		duration("cache.negativeTTL", reload, func(n *Node) *time.Duration { return &n.Cache.NegativeTTL }, time.Second, time.Hour,
			"a new name is unknown to pods for that long"),
		duration("cache.serveStale", reload, func(n *Node) *time.Duration { return &n.Cache.ServeStale }, 0, 24*time.Hour, "0s turns it off"),
		number("cache.memoryMiB", reload, func(n *Node) *int { return &n.Cache.MemoryMiB }, 1, 4096, "it bounds the cache of the whole node"),
		boolean("cache.prefetch", reload, func(n *Node) *bool { return &n.Cache.Prefetch }),
		duration("cache.holdDenials", reload, func(n *Node) *time.Duration { return &n.Cache.HoldDenials }, 0, 5*time.Minute,
			"with 0s a denial counts at once; a removed name is answered that long"),
		text("fastPath", reload, func(n *Node) *string { return &n.FastPath }, configfile.OneOf(FastPathOn, FastPathOff)),
		text("kernelHits.mode", reload, func(n *Node) *string { return &n.KernelHits.Mode }, configfile.OneOf(KernelHitsOff,
			KernelHitsNamespaces, KernelHitsOn, KernelHitsAuto)),
		list("kernelHits.namespaces", reload, func(n *Node) *[]string { return &n.KernelHits.Namespaces }, parseNamespace, asWritten, true),
		number("limits.misses", reload, func(n *Node) *int { return &n.Limits.Misses }, 16, 100_000, "a miss in flight takes about 30 kB"),
		number("limits.tcpConnections", reload, func(n *Node) *int { return &n.Limits.TCPConnections }, 16, 100_000,
			"an open connection takes 10 kB, and up to 128 KiB with unread answers"),
		duration("lease.renew", reload, func(n *Node) *time.Duration { return &n.Lease.Renew }, 20*time.Millisecond, time.Second,
			"it is the time from one probe to the next"),
		// glibc sends a query again after 5 s. The lease of a hung agent must expire before that.
		duration("lease.lifetime", reload, func(n *Node) *time.Duration { return &n.Lease.Lifetime }, 100*time.Millisecond, 4*time.Second,
			"pods wait that long for a hung agent, and resolvers send again after 5s"),
		text("link.name", restart, func(n *Node) *string { return &n.Link.Name }, parseLinkName),
		boolean("link.clusterDNSOnLink", restart, func(n *Node) *bool { return &n.Link.ClusterDNSOnLink }),
		text("backend", restart, func(n *Node) *string { return &n.Backend }, configfile.OneOf(BackendAuto, BackendNftables,
			BackendIptables, BackendIptablesNFT, BackendIptablesLegacy)),
		text("kubeProxyMode", reload, func(n *Node) *string { return &n.KubeProxyMode },
			configfile.OneOf(KubeProxyAuto, KubeProxyIptables, KubeProxyIPVS, KubeProxyNftables, KubeProxyNone)),
		listen("listen.metrics", restart, func(n *Node) *netip.AddrPort { return &n.Listen.Metrics }),
		listen("listen.health", restart, func(n *Node) *netip.AddrPort { return &n.Listen.Health }),
		boolean("listen.namespaces", restart, func(n *Node) *bool { return &n.Listen.Namespaces }),
		logLevel("log.level", reload),
		text("log.format", restart, func(n *Node) *string { return &n.Log.Format }, configfile.OneOf(LogText, LogJSON)),
		text("log.queries", reload, func(n *Node) *string { return &n.Log.Queries }, configfile.OneOf(QueriesOff, QueriesErrors, QueriesAll)),
		text("steer.mode", reload, func(n *Node) *string { return &n.Steer.Mode }, configfile.OneOf(SteerAll, SteerNamespaces, SteerAnnotated,
			SteerNone)),
		list("steer.namespaces", reload, func(n *Node) *[]string { return &n.Steer.Namespaces }, parseNamespace, asWritten, true),
		boolean("adoptPods", restart, func(n *Node) *bool { return &n.AdoptPods }),
		podDNS("podDNS", reload),
		text("resolvConf.mode", restart, func(n *Node) *string { return &n.ResolvConf.Mode }, configfile.OneOf(conflist.ResolvConfAuto,
			conflist.ResolvConfOff)),
		list("resolvConf.paths", restart, func(n *Node) *[]string { return &n.ResolvConf.Paths }, parsePattern, asWritten, false),
		text("resolvConf.host", reload, func(n *Node) *string { return &n.ResolvConf.Host }, configfile.ParsePath),
		nri("resolvConf.nri", restart),
		list("hosts.services", reload, func(n *Node) *[]string { return &n.Hosts.Services }, parseService, asWritten, true),
		text("stateDir", restart, func(n *Node) *string { return &n.StateDir }, configfile.ParsePath),
		text("persistDir", restart, func(n *Node) *string { return &n.PersistDir }, configfile.ParsePath),
		text("corefile", reload, func(n *Node) *string { return &n.Corefile }, configfile.ParsePath),
		snippets("snippets"),
	}
}

func names() []string {
	var out []string
	for _, f := range table() {
		out = append(out, f.name)
	}
	return out
}

// groups returns every proper prefix of the fields' names, such as upstreams and cache.
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

// fixed returns a field that has only one valid value.
func fixed(name, value string) field {
	return field{name: name,
		set: func(d *decoder, v strict.Value) {
			if s, ok := d.TextOf(v, value); ok && s != value {
				d.fail(v, "is %q: write %s, the only one that is known here", s, value)
			}
		},
		show: func(*Node) any { return value }}
}

// parsed returns a field whose value is a text that parse converts. show returns nil if the field is to be left out.
func parsed[T any](name string, reload bool, want string, at func(*Node) *T, parse func(string) (T, error), show func(T) any) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) {
			s, ok := d.TextOf(v, want)
			if !ok {
				return
			}
			if value, err := parse(s); err != nil {
				d.fail(v, "%v", err)
			} else {
				*at(d.node) = value
			}
		},
		show: func(n *Node) any { return show(*at(n)) }}
}

// text returns a field with a text value; parse checks the text and returns its canonical form.
func text(name string, reload bool, at func(*Node) *string, parse func(string) (string, error)) field {
	return parsed(name, reload, "text", at, parse, func(s string) any {
		if s == "" {
			return nil
		}
		return s
	})
}

func boolean(name string, reload bool, at func(*Node) *bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) {
			if v.Kind != strict.Boolean {
				d.Mismatch(v, "true or false, without quotes")
				return
			}
			*at(d.node) = v.Text == "true"
		},
		show: func(n *Node) any { return *at(n) }}
}

// number returns a field whose value is a number from least to most: one beyond that range is probably a typo. why is for the message.
func number(name string, reload bool, at func(*Node) *int, least, most int, why string) field {
	return field{name: name, reload: reload,
		check: func(n *Node) string { return within(*at(n), least, most, why, strconv.Itoa) },
		set: func(d *decoder, v strict.Value) {
			whole, err := strconv.ParseInt(v.Text, 10, 64)
			switch {
			case v.Kind == strict.Number && err == nil:
				*at(d.node) = int(whole)
			case v.Kind == strict.Number && errors.Is(err, strconv.ErrRange):
				*at(d.node) = 1 << 62 // beyond every bound: Validate reports it
			default:
				d.Mismatch(v, "a whole number, without quotes")
			}
		},
		show: func(n *Node) any { return *at(n) }}
}

// within returns the message for a value that is not in its range, and "" for any other.
func within[T cmp.Ordered](value, least, most T, why string, show func(T) string) string {
	if value >= least && value <= most {
		return ""
	}
	return fmt.Sprintf("is %s: write %s to %s; %s", show(value), show(least), show(most), why)
}

// duration returns a field like that of number, for a time.
func duration(name string, reload bool, at func(*Node) *time.Duration, least, most time.Duration, why string) field {
	const want = "a time with its unit, such as 150ms, 5s or 1h"
	f := parsed(name, reload, want, at, func(s string) (time.Duration, error) {
		t, err := time.ParseDuration(s)
		if err != nil {
			err = fmt.Errorf("%q is not a time: write %s", s, want)
		}
		return t, err
	}, func(t time.Duration) any { return showDuration(t) })
	f.check = func(n *Node) string { return within(*at(n), least, most, why, showDuration) }
	return f
}

// list returns a field whose value is a list of texts. quiet means that an empty list is not shown.
func list[T any](name string, reload bool, at func(*Node) *[]T, parse func(string) (T, error), print func(T) string, quiet bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) { *at(d.node) = elements(d, v, parse) },
		show: func(n *Node) any {
			if quiet && len(*at(n)) == 0 {
				return nil
			}
			return each(*at(n), print)
		}}
}

// elements decodes a list of texts one by one, so that a fault names the element.
func elements[T any](d *decoder, v strict.Value, parse func(string) (T, error)) []T {
	out := []T{}
	for _, e := range d.ItemsOf(v, "a list, such as [\"a\", \"b\"]") {
		d.node.at[e.Field] = e.Place
		s, ok := d.TextOf(e, "text")
		if !ok {
			continue
		}
		value, err := parse(s)
		if err != nil {
			d.fail(e, "%v", err)
			continue
		}
		out = append(out, value)
	}
	return out
}

func asWritten(s string) string { return s }

func each[T any](values []T, print func(T) string) []string {
	out := []string{}
	for _, v := range values {
		out = append(out, print(v))
	}
	return out
}

// auto is the value of upstreams.external that leaves the choice to kube-dns's Corefile.
const auto = "auto"

// external returns the field upstreams.external: a list of servers and files, or auto.
func external(name string, reload bool) field {
	const want = "auto, or a list of servers and files, such as [10.1.2.3, /etc/resolv.conf]"
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) {
			if v.Kind == strict.String {
				if v.Text != auto {
					d.fail(v, "%q is not known: write %s", v.Text, want)
				}
				d.node.Upstreams.Auto, d.node.Upstreams.External = true, nil
				return
			}
			if v.Kind != strict.List {
				d.Mismatch(v, want)
				return
			}
			d.node.Upstreams.Auto, d.node.Upstreams.External = false, elements(d, v, parseSource)
		},
		show: func(n *Node) any {
			if n.Upstreams.Auto {
				return auto
			}
			return each(n.Upstreams.External, nameserver.Source.String)
		}}
}

// redirects returns the field redirects: a list of pairs of addresses, or of cluster DNS addresses alone, which is the common case.
func redirects(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) {
			for _, e := range d.ItemsOf(v, "a list, such as [10.96.0.10], or of clusterDNS and steering") {
				d.node.at[e.Field] = e.Place
				for _, m := range e.Members() {
					d.node.at[m.Value.Field] = m.Value.Place
				}
				d.node.Redirects = append(d.node.Redirects, steer.ReadRedirect(&d.Reader, e, d.addr))
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

func (d *decoder) addr(v strict.Value) netip.Addr {
	s, ok := d.TextOf(v, "an address, such as 10.96.0.10")
	if !ok {
		return netip.Addr{}
	}
	a, err := configfile.ParseAddr(s)
	if err != nil {
		d.fail(v, "%v", err)
	}
	return a
}

// mapping returns a field whose value is a mapping with domains as keys; root allows the key ".". value decodes the value of a key.
func mapping[T any](name string, at func(*Node) *map[string]T, root bool, value func(*decoder, strict.Value) (T, bool),
	show func(T) any) field {
	return field{name: name, reload: true,
		set: func(d *decoder, v strict.Value) {
			out := map[string]T{}
			*at(d.node) = out
			for _, m := range d.entries(v) {
				domain, ok := ".", root && m.Key == "."
				if !ok {
					domain, ok = d.domain(m, func(s string) bool { _, ok := out[s]; return ok })
				}
				if !ok || !d.given(m.Value) {
					continue
				}
				if read, ok := value(d, m.Value); ok {
					out[domain] = read
				}
			}
		},
		show: func(n *Node) any {
			out := yaml.MapSlice{}
			for _, domain := range sortedKeys(*at(n)) {
				out = append(out, yaml.MapItem{Key: domain, Value: show((*at(n))[domain])})
			}
			if len(out) == 0 {
				return nil
			}
			return out
		}}
}

func stubDomains(name string) field {
	return mapping(name, func(n *Node) *map[string][]nameserver.Address { return &n.StubDomains }, false,
		func(d *decoder, v strict.Value) ([]nameserver.Address, bool) {
			return elements(d, v, configfile.ParseServer), true
		},
		func(servers []nameserver.Address) any { return each(servers, nameserver.Address.Short) })
}

// snippets returns the field snippets. In its texts ${NAME} is not replaced, because a Corefile has its own {$NAME}, and may have regular
// expressions.
func snippets(name string) field {
	return mapping(name, func(n *Node) *map[string]string { return &n.Snippets }, true,
		func(d *decoder, v strict.Value) (string, bool) { return d.raw(v, "lines of a Corefile, after |") },
		func(lines string) any { return lines })
}

// entries returns the pairs of a mapping whose keys are names, such as domains, and not fields.
func (d *decoder) entries(v strict.Value) []strict.Member {
	out := d.Plain(v)
	for i := range out {
		out[i].Value.Field = fmt.Sprintf("%s[%s]", v.Field, out[i].Key)
		d.node.at[out[i].Value.Field] = out[i].Name
	}
	return out
}

// domain parses a key that is a domain. Two spellings of the same domain are a fault.
func (d *decoder) domain(m strict.Member, taken func(string) bool) (string, bool) {
	at := strict.Value{Field: m.Value.Field, Place: m.Name}
	domain, err := configfile.ParseDomain(m.Key)
	if err != nil {
		d.fail(at, "%v", err)
		return "", false
	}
	if taken(domain) {
		d.fail(at, "%s is listed twice: keep one", domain)
		return "", false
	}
	return domain, true
}

func listen(name string, reload bool, at func(*Node) *netip.AddrPort) field {
	return parsed(name, reload, "address:port, or off", at, configfile.ParseListen, func(a netip.AddrPort) any {
		if !a.IsValid() {
			return off
		}
		return a.String()
	})
}

func logLevel(name string, reload bool) field {
	level := func(n *Node) *slog.Level { return &n.Log.Level }
	return parsed(name, reload, "debug, info, warn or error", level, func(s string) (l slog.Level, err error) {
		if _, err = configfile.OneOf("debug", "info", "warn", "error")(s); err == nil {
			err = l.UnmarshalText([]byte(s))
		}
		return l, err
	}, func(l slog.Level) any { return strings.ToLower(l.String()) })
}

// off is the value that disables a listener or a socket.
const off = "off"

// nri returns the field resolvConf.nri: the path of the NRI socket, or off.
func nri(name string, reload bool) field {
	socket := func(n *Node) *string { return &n.ResolvConf.NRI }
	return parsed(name, reload, "a path, or off", socket, func(s string) (string, error) {
		if s == off {
			return "", nil
		}
		path, err := configfile.ParsePath(s)
		if err != nil {
			err = fmt.Errorf("%w; off turns it off", err)
		}
		return path, err
	}, func(s string) any { return cmp.Or(s, off) })
}
