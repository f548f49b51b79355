// Package kubedns reads kube-dns's Corefile to decide whether the agent may send queries for names outside the cluster directly to the
// node's resolvers, because kube-dns would do the same.
//
// It never guesses: a plugin or option that it does not know may change answers, so such queries go to kube-dns. That costs one hop and
// is never wrong. It opens no file: an import is not followed.
//
// It returns no errors: with an invalid Corefile, too, queries go to kube-dns.
package kubedns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"

	"github.com/neardns/neardns/pkg/strict"
)

// NodeFile is the file in which CoreDNS, in a pod with dnsPolicy Default, finds the node's resolvers: the kubelet copies the file of its
// option --resolv-conf there.
const NodeFile = "/etc/resolv.conf"

// Verdict is the decision where queries for names outside the cluster go.
type Verdict struct {
	Node bool   // they go to the node's resolvers, because kube-dns would send them there and nowhere else
	Why  string // the directive that justifies Node, with its line, or the first reason against it, with the line of a directive
	// Names has the names that kube-dns may answer by itself according to its Corefile, in lower case with the final dot: zones, entries of
	// hosts, rewritten names. At most maxNames.
	Names []string
}

const maxNames = 16

// passive lists the plugins that add no answers of their own for names outside the cluster: such a query gets the upstream's answer,
// perhaps from a cache or in another order, or fails. The other plugins of CoreDNS may add some; `forward` and `kubernetes` are checked in
// detail.
func passive() []string {
	return []string{"bind", "bufsize", "cache", "cancel", "debug", "dnstap", "errors", "health", "loadbalance", "log", "loop",
		"metadata", "multisocket", "nsid", "pprof", "prometheus", "ready", "reload", "root", "timeouts", "trace"}
}

// indifferent lists the options of `forward` that change no answer of an upstream; some of them only decide when a query fails. It lacks,
// for example, `except`, `next` and `failover`, with which other plugins or servers answer.
func indifferent() []string {
	return []string{"expire", "failfast_all_unhealthy_upstreams", "force_tcp", "health_check", "max_age", "max_concurrent",
		"max_connect_attempts", "max_fails", "max_idle_conns", "policy", "prefer_udp", "read_timeout"}
}

// Read returns the verdict on a Corefile. Names below clusterDomain, in-addr.arpa and ip6.arpa belong to the cluster: queries for them go
// to kube-dns in any case, so the parts of the Corefile about them are ignored.
func Read(text, clusterDomain string) Verdict {
	r := &reader{own: []string{clusterDomain, "in-addr.arpa", "ip6.arpa"}}
	r.read(text)
	v := Verdict{Names: r.names}
	switch {
	case r.against != "":
		v.Why = r.against
	case r.root == "":
		v.Why = "its Corefile has no server block for all names"
	case r.forward == "":
		v.Why = "its Corefile forwards names of " + r.root + " to no server"
	default:
		v.Node, v.Why = true, r.forward
	}
	return v
}

// reader walks one Corefile.
type reader struct {
	own     []string // the cluster's zones, whose names kube-dns resolves in any case
	root    string   // the key of the server block for all names
	forward string   // the directive that forwards all names to the node's resolvers
	against string   // the first reason to send queries to kube-dns
	names   []string // see Verdict.Names
}

func (r *reader) object(format string, args ...any) {
	if r.against == "" {
		r.against = fmt.Sprintf(format, args...)
	}
}

// name records a name that kube-dns may answer by itself.
func (r *reader) name(s string) {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if len(r.names) < maxNames && strict.IsDomain(s) && !slices.Contains(r.names, s+".") {
		r.names = append(r.names, s+".")
	}
}

func (r *reader) read(text string) {
	for d := caddyfile.NewDispenser("Corefile", strings.NewReader(text)); d.Next(); {
		// The parser would resolve imports and variables in the agent's container, which is not kube-dns's.
		switch {
		case d.Val() == "import":
			r.object("its Corefile imports text that is not available here, line %d", d.Line())
		case strings.Contains(d.Val(), "{$"), strings.Contains(d.Val(), "{%"):
			r.object("its Corefile has the variable %s, line %d", show(d.Val()), d.Line())
		}
	}
	if r.against != "" {
		return
	}
	blocks, err := caddyfile.Parse("Corefile", strings.NewReader(text), nil)
	if err != nil {
		r.object("its Corefile cannot be read (%s)", show(err.Error()))
		return
	}
	for _, b := range blocks {
		r.block(b)
	}
}

// isCluster reports whether all names below a zone are the cluster's.
func (r *reader) isCluster(zone string) bool {
	return slices.ContainsFunc(r.own, func(own string) bool { return zone == own || strings.HasSuffix(zone, "."+own) })
}

func (r *reader) block(b caddyfile.ServerBlock) {
	outside := false
	// OpenShift has one for hostname.bind. The plugin answers only class CH, with the server's own name.
	_, chaos := b.Tokens["chaos"]
	chaos = chaos && len(b.Tokens) == 1
	for _, key := range b.Keys {
		zone, ok := zoneOf(key)
		switch {
		case !ok:
			r.object("its Corefile has the server block %s", show(key))
		case zone == "." && r.root != "":
			r.object("its Corefile has a second server block for all names, %s", show(key))
		case zone == ".":
			r.root, outside = key, true
		case !chaos && !r.isCluster(zone):
			r.object("its Corefile has the zone %s", show(zone))
			r.name(zone)
		}
	}
	if outside {
		for _, d := range directives(b) {
			r.directive(d)
		}
		return
	}
	for _, d := range directives(b) {
		r.gather(d)
	}
}

// directive checks one directive of the server block for all names.
func (r *reader) directive(d directive) {
	switch {
	case d.name == "forward":
		r.forwards(d)
	case d.name == "kubernetes":
		if len(d.args) == 0 {
			r.object("its Corefile has kubernetes for all names, line %d", d.line)
		}
		for _, a := range d.args {
			if zone, ok := zoneOf(a); !ok || !r.isCluster(zone) {
				r.object("its Corefile has the zone %s (kubernetes), line %d", show(a), d.line)
				r.name(a)
			}
		}
	case slices.Contains(passive(), d.name):
	default:
		r.object("its Corefile has the plugin %s, line %d", show(d.name), d.line)
		r.gather(d)
	}
}

func (r *reader) forwards(d directive) {
	if len(d.args) < 2 {
		r.object("its Corefile has a forward without servers, line %d", d.line)
		return
	}
	zone, ok := zoneOf(d.args[0])
	switch {
	case ok && zone != "." && r.isCluster(zone):
		return
	case !ok || zone != ".":
		r.object("its Corefile forwards %s separately, line %d", show(d.args[0]), d.line)
		r.name(d.args[0])
		return
	case len(d.args) != 2 || d.args[1] != NodeFile:
		r.object("its Corefile forwards to %s, line %d", show(strings.Join(d.args[1:], " ")), d.line)
		return
	case r.forward != "":
		r.object("its Corefile forwards all names twice, line %d", d.line)
		return
	}
	for _, o := range d.options {
		if !slices.Contains(indifferent(), o.name) {
			r.object("its Corefile has %s for forward, line %d", show(o.name), o.line)
			if o.name == "except" {
				for _, a := range o.args {
					r.name(a)
				}
			}
		}
	}
	r.forward = fmt.Sprintf("forward . %s, line %d", NodeFile, d.line)
}

// gather records the names in a directive that kube-dns may answer by itself.
func (r *reader) gather(d directive) {
	switch d.name {
	case "hosts":
		for _, o := range d.options {
			if _, err := netip.ParseAddr(o.name); err == nil {
				for _, a := range o.args {
					r.name(a)
				}
			}
		}
	case "rewrite", "template", "file", "acl", "k8s_external", "etcd", "secondary":
		for _, a := range d.args {
			if strings.Contains(strings.TrimSuffix(a, "."), ".") && !strings.Contains(a, "/") {
				r.name(a)
			}
		}
	}
}

// directive is a directive of a server block, or an option of a directive.
type directive struct {
	name    string
	line    int
	args    []string
	options []directive // the lines of its block, without the blocks nested in it
}

// directives returns the directives of a server block in the order of their lines. The parser groups them by name.
func directives(b caddyfile.ServerBlock) []directive {
	var out []directive
	for _, tokens := range b.Tokens {
		depth := 0
		for i, t := range tokens {
			starts := i == 0 || tokens[i-1].Line+strings.Count(tokens[i-1].Text, "\n") < t.Line
			switch {
			case t.Text == "{":
				depth++
			case t.Text == "}":
				depth--
			case depth == 0 && starts:
				out = append(out, directive{name: t.Text, line: t.Line})
			case len(out) == 0:
			case depth == 0:
				d := &out[len(out)-1]
				d.args = append(d.args, t.Text)
			case depth == 1:
				d := &out[len(out)-1]
				if starts || len(d.options) == 0 {
					d.options = append(d.options, directive{name: t.Text, line: t.Line})
					continue
				}
				o := &d.options[len(d.options)-1]
				o.args = append(o.args, t.Text)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b directive) int { return a.line - b.line })
	return out
}

// zoneOf returns the zone of a server block's key, which is a zone or a network, with or without dns:// and a port. A network stands for
// its reverse zone.
func zoneOf(key string) (zone string, ok bool) {
	hosts, _, err := plugin.SplitHostPort(strings.TrimPrefix(key, "dns://"))
	if err != nil {
		return "", false
	}
	if hosts[0] == "." {
		return ".", true
	}
	zone = strings.ToLower(strings.TrimSuffix(hosts[0], "."))
	return zone, strict.IsDomain(zone)
}

// show makes a text from the Corefile short and printable on one line, for messages.
func show(s string) string {
	return strict.ClipTo(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, s), 80)
}
