package dns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Directives that belong to the agent: a snippet may not bring them.
const (
	dirBind    = "bind"
	dirBufsize = "bufsize"
	dirProbe   = "probe"
	dirMetrics = "metrics"
	dirAdmit   = "admit"
)

// probeZone is the prober's; the plugin of that name answers in it.
const probeZone = "probe.neardns.invalid"

// How stale answers are given (RFC 8767, section 5 and 6): the upstream is asked first and has this long; then the old
// answer goes out with a short TTL, and the upstream is not asked again for a while.
const staleTerms = "verify 1s 30s 30s"

// How long a miss may take in all. CoreDNS bounds reading from an upstream (2 s) but not connecting: to an address whose
// packets vanish, the first connections take up to 30 s, and each question that waits for one holds a goroutine. Two
// readings fit, and clients that wait 5 s still hear of the failure.
const missLimit = "cancel 4s"

// directives lists what a Corefile may say, in the order in which the plugins see a question. It is CoreDNS's own order
// (core/dnsserver/zdirectives.go) for those that are linked, but for admit and cancel, which stand behind the cache so that
// hits are not bounded by them and do not pay for them.
func directives() []string {
	return []string{dirBufsize, dirBind, dirProbe, dirMetrics, "errors", "log", "local", "loadbalance",
		"rewrite", "acl", "cache", dirAdmit, "cancel", "header", "template", "hosts", "file", "forward"}
}

// block is one server block. Its directives come out in the order of directives().
type block struct {
	zones []string
	lines map[string][]string // directive name → its text, lines indented by one step
}

func (b *block) set(name string, lines ...string) {
	if b.lines == nil {
		b.lines = map[string][]string{}
	}
	b.lines[name] = lines
}

func (b *block) clone(zones ...string) *block {
	return &block{zones: zones, lines: maps.Clone(b.lines)}
}

func (b *block) print(w *strings.Builder, port uint16) {
	for i, z := range b.zones {
		if i > 0 {
			w.WriteByte(' ')
		}
		fmt.Fprintf(w, "%s:%d", z, port)
	}
	w.WriteString(" {\n")
	for _, d := range directives() {
		for _, line := range b.lines[d] {
			w.WriteString("    " + line + "\n")
		}
	}
	w.WriteString("}\n")
}

// Render turns a Config into the Corefile that is served, or says everything that is wrong with it. It opens nothing and
// remembers nothing; only a Corefile or snippet of the operator's own can make it look further, by CoreDNS's {$NAME} for
// environment variables and "import" for files.
func Render(cfg Config) (string, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return "", err
	}
	var blocks []*block
	header := "# Rendered by neardns-agent from its NodeConfig; changes belong there.\n"
	if cfg.Override != "" {
		var notes []string
		if blocks, notes, err = override(cfg); err != nil {
			return "", err
		}
		header = "# The operator's Corefile, with the agent's listeners, metrics and the prober's zone.\n"
		for _, n := range notes {
			header += "# " + n + "\n"
		}
	} else if blocks, err = rendered(cfg); err != nil {
		return "", err
	}
	if cfg.InstanceID != "" {
		probe := &block{zones: []string{probeZone}}
		probe.set(dirProbe, dirProbe+" "+cfg.InstanceID)
		blocks = append(blocks, probe)
	}
	var out strings.Builder
	out.WriteString(header)
	for _, b := range blocks {
		b.set(dirBind, bindLine(cfg))
		out.WriteByte('\n')
		b.print(&out, cfg.Port)
	}
	return out.String(), nil
}

func admitLine(cfg Config) string { return fmt.Sprintf("%s %d", dirAdmit, cfg.Misses) }

func bindLine(cfg Config) string {
	line := dirBind
	for _, a := range cfg.Addresses {
		line += " " + a.String()
	}
	return line
}

// rendered makes the blocks of a configuration without a Corefile of its own: the cluster's zones, each stub domain, the
// rest, and zones that only snippets name.
func rendered(cfg Config) ([]*block, error) {
	common := new(block)
	common.set(dirBufsize, fmt.Sprintf("%s %d", dirBufsize, cfg.BufferSize))
	common.set(dirMetrics, dirMetrics)
	common.set("cache", cacheLines(cfg.Cache)...)
	common.set(dirAdmit, admitLine(cfg))
	common.set("cancel", missLimit)
	switch cfg.Queries {
	case QueriesOff:
		// One line a minute for each server block, the first at once: an upstream that is down fails thousands of
		// questions, and the metrics count them.
		common.set("errors", "errors {", "    consolidate 1m .* warning show_first", "}")
	case QueriesErrors:
		common.set("errors", "errors")
	case QueriesAll:
		common.set("errors", "errors")
		common.set("log", "log")
	}

	cluster := common.clone(append([]string{cfg.ClusterDomain}, cfg.ReverseZones...)...)
	cluster.set("forward", forwardLines(cfg.Cluster, true)...)
	blocks := []*block{cluster}
	for _, zone := range slices.Sorted(maps.Keys(cfg.StubDomains)) {
		stub := common.clone(zone)
		stub.set("forward", forwardLines(cfg.StubDomains[zone], false)...)
		blocks = append(blocks, stub)
	}
	rest := common.clone(".")
	if len(cfg.External) > 0 {
		rest.set("forward", forwardLines(cfg.External, false)...)
	} else {
		rest.set("forward", forwardLines(cfg.Cluster, true)...)
	}
	blocks = append(blocks, rest)

	for _, zone := range slices.Sorted(maps.Keys(cfg.Snippets)) {
		lines, err := snippet(zone, cfg.Snippets[zone])
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(blocks, func(b *block) bool { return slices.Contains(b.zones, zone) })
		if at < 0 {
			blocks = append(blocks, rest.clone(zone))
			at = len(blocks) - 1
		}
		maps.Copy(blocks[at].lines, lines)
	}
	return blocks, nil
}

func cacheLines(c Cache) []string {
	lines := []string{
		"cache {",
		fmt.Sprintf("    success %d", c.Entries),
		fmt.Sprintf("    denial %d %d", c.Entries, c.NegativeTTL/time.Second),
	}
	if c.ServeStale > 0 {
		lines = append(lines, fmt.Sprintf("    serve_stale %s %s", c.ServeStale, staleTerms))
	}
	return append(lines, "}")
}

// forwardLines asks in the order that was written, as a resolver library does, and goes on to the next server when one
// does not answer or says that it cannot.
func forwardLines(servers []string, tcp bool) []string {
	line := "forward . " + strings.Join(servers, " ")
	var body []string
	if tcp {
		// UDP from node to ClusterIP is what loses packets to conntrack races; one connection is kept and reused.
		body = append(body, "    force_tcp")
	}
	if len(servers) > 1 {
		// max_fails 1: two failed health checks, not three, and the silent one is passed over.
		body = append(body, "    policy sequential", "    failover SERVFAIL REFUSED", "    max_fails 1")
	}
	if len(body) == 0 {
		return []string{line}
	}
	return append(append([]string{line + " {"}, body...), "}")
}
