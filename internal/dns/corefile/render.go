package corefile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Directives that belong to the agent: a snippet may not bring them.
const (
	dirBind       = "bind"
	dirBufsize    = "bufsize"
	dirProbe      = "probe"
	dirMetrics    = "metrics"
	dirLimit      = "limit"
	dirSearchPath = "searchpath"
	dirShared     = "shared"
)

// CoreDNS's directives that matter for the fast path.
const (
	dirCache  = "cache"
	dirDebug  = "debug"
	dirErrors = "errors"
	dirPprof  = "pprof"
)

// Directives that forward: the rendered one, and those that an operator may use instead.
const (
	dirAsk     = "ask"
	dirForward = "forward"
	dirCancel  = "cancel"
)

// probeZone is the prober's; the plugin of that name answers in it.
const probeZone = "probe.neardns.invalid"

// How stale answers are served (RFC 8767, sections 5 and 6): the upstream has this long to answer. Then the client gets the stale answer
// with a short TTL, and the upstream is not queried again for a while. Half a second is a hundred times what kube-dns takes, and leaves
// clients that wait for one second the other half.
const staleTerms = "verify 500ms 30s 30s"

// The cluster's own names change hands: a pod's address is another pod's minutes later. So their stale answers live a minute at
// most, and are served only if kube-dns was silent for as long as a query may take. They are rechecked after five seconds, and no client
// keeps them for longer.
const (
	clusterStale      = time.Minute
	clusterStaleTerms = "verify 0s 5s 5s"
)

// Which entries are refreshed before they expire: names, denied ones too, with three hits less than a minute apart. Three hits spare the
// upstream names that are queried by chance.
const refreshTerms = "refresh 3 1m"

// The longest time that an answer is cached, as in CoreDNS, and the shortest: CoreDNS's minimum of five seconds would exceed some TTLs.
// kube-dns's answers are cached for at most half a minute, as in NodeLocal DNSCache and kube-dns's own cache, so that a deleted record is
// gone when pods expect it.
const (
	maxTTL        = 3600
	maxTTLCluster = 30
	minTTL        = 0
)

// missLimit bounds a miss if a snippet uses CoreDNS's forward; ours has a bound of its own. CoreDNS bounds reading from an upstream (2 s)
// but not connecting: to an address whose packets vanish, the first connections take up to 30 s, and each query that waits for one holds a
// goroutine. Two reads fit, and clients that wait 5 s still get the failure.
const missLimit = "cancel 4s"

// directives lists the directives of a Corefile, in the order in which the plugins see a query. It is CoreDNS's own order
// (core/dnsserver/zdirectives.go) for those that are linked, except for limit and cancel, which come after the cache so that
// they neither bound hits nor cost them anything, and searchpath, which queries the whole server and so needs nothing
// of what follows it.
func directives() []string {
	return []string{dirBufsize, dirBind, dirDebug, dirPprof, dirProbe, dirMetrics, dirErrors, "log", dirSearchPath, "local", "dns64",
		"loadbalance",
		"rewrite", "acl", dirCache, dirLimit, dirCancel, "header", "template", "hosts", "file", dirShared, dirAsk, dirForward, "whoami"}
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

// Render turns a Config into the Corefile that is served, or returns everything that is wrong with it. It opens nothing and
// remembers nothing; only a Corefile or snippet of the operator's own can make it look further, by CoreDNS's {$NAME} for
// environment variables and "import" for files.
func Render(cfg Config) (string, error) {
	cfg, err := cfg.Complete()
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
	} else if cfg.Shared {
		blocks = []*block{sharedZones(cfg)}
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
		if b.lines[dirBind] == nil {
			b.set(dirBind, bindLine(cfg.Addresses))
		}
		out.WriteByte('\n')
		b.print(&out, cfg.Port)
	}
	return out.String(), nil
}

func limitLine(cfg Config) string { return fmt.Sprintf("%s %d", dirLimit, cfg.Misses) }

func bindLine(addresses []netip.Addr) string {
	line := dirBind
	for _, a := range addresses {
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
	common.set(dirSearchPath, dirSearchPath)
	common.set(dirCache, cacheLines(cfg.Cache, fromOthers)...)
	common.set(dirLimit, limitLine(cfg))
	switch cfg.Queries {
	default: // off
		// One line a minute for each server block, the first at once: an upstream that is down fails thousands of
		// queries, and the metrics count them.
		common.set(dirErrors, "errors {", "    consolidate 1m .* warning show_first", "}")
	case QueriesErrors:
		common.set(dirErrors, "errors")
	case QueriesAll:
		common.set(dirErrors, "errors")
		common.set("log", "log")
	}

	cluster := common.clone(append([]string{cfg.ClusterDomain}, cfg.ReverseZones...)...)
	cluster.set(dirAsk, askCluster(cfg)...)
	cluster.set(dirCache, cacheLines(cfg.Cache, ofCluster, answersOf(cfg)...)...)
	blocks := []*block{cluster}
	for _, zone := range slices.Sorted(maps.Keys(cfg.StubDomains)) {
		stub := common.clone(zone)
		stub.set(dirAsk, askLines(cfg.StubDomains[zone])...)
		blocks = append(blocks, stub)
	}
	rest := common.clone(".")
	if len(cfg.External) > 0 {
		rest.set(dirAsk, askLines(cfg.External, externalResort(cfg)...)...)
	} else {
		rest.set(dirAsk, askCluster(cfg)...)
		rest.set(dirCache, cacheLines(cfg.Cache, fromCluster, answersOf(cfg)...)...)
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
		if lines[dirForward] != nil {
			delete(blocks[at].lines, dirAsk) // it comes first and would leave no query to forward
			if lines[dirCancel] == nil {
				blocks[at].set(dirCancel, missLimit)
			}
		}
	}
	return blocks, nil
}

// sharedZones is the edge's one block. It has no upstream, and refuses names in none of its zones.
func sharedZones(cfg Config) *block {
	b := &block{zones: []string{"."}}
	b.set(dirBufsize, fmt.Sprintf("%s %d", dirBufsize, cfg.BufferSize))
	b.set(dirMetrics, dirMetrics)
	b.set(dirShared, dirShared)
	return b
}

// answersOf names the cluster as the source of all its DNS addresses' answers, so that a redirect that comes or goes costs no entries. If
// the operator names other servers, their addresses count.
func answersOf(cfg Config) []string {
	own := func(s nameserver.Address) bool { return !slices.Contains(cfg.LastResort, s) }
	if len(cfg.Cluster) == 0 || slices.ContainsFunc(cfg.Cluster, own) {
		return nil
	}
	return []string{"answers_of cluster"}
}

// origin is the source of a cache's answers.
type origin int

const (
	fromOthers  origin = iota
	fromCluster        // kube-dns's, about names of others
	ofCluster          // about the cluster's own names
)

func cacheLines(c Cache, w origin, more ...string) []string {
	ttl, stale, terms := maxTTL, c.ServeStale, staleTerms
	if w != fromOthers {
		ttl = maxTTLCluster
	}
	if w == ofCluster {
		stale, terms = min(stale, clusterStale), clusterStaleTerms
	}
	lines := []string{
		"cache {",
		fmt.Sprintf("    success %d %d %d", c.Entries, ttl, minTTL),
		fmt.Sprintf("    denial %d %d %d", c.Entries, c.NegativeTTL/time.Second, minTTL),
		"    rotate",
	}
	if !c.NoPrefetch {
		lines = append(lines, "    "+refreshTerms)
	}
	if stale > 0 {
		lines = append(lines, fmt.Sprintf("    serve_stale %s %s", stale, terms))
		if w == ofCluster {
			lines = append(lines, "    stale_on_silence")
		}
	}
	if c.HoldDenials > 0 {
		lines = append(lines, fmt.Sprintf("    hold_denials %s", c.HoldDenials))
	}
	for _, m := range more {
		lines = append(lines, "    "+m)
	}
	return append(lines, "}")
}

// askCluster renders the directive for kube-dns, over TCP, because UDP from node to ClusterIP loses packets to conntrack races. The cluster
// DNS addresses themselves are the last resort: without neardns, pods would use them.
func askCluster(cfg Config) []string {
	body := append([]string{"tcp", "holds " + cfg.ClusterDomain}, resort(cfg, cfg.Cluster)...)
	return askLines(cfg.Cluster, body...)
}

// externalResort renders the last resort for the rest: kube-dns, which pods would use without neardns.
func externalResort(cfg Config) []string {
	if len(cfg.LastResort) == 0 {
		cfg.LastResort, cfg.LastResortMark = cfg.Cluster, 0
	}
	return resort(cfg, cfg.External)
}

func resort(cfg Config, servers []nameserver.Address) []string {
	var last []nameserver.Address
	for _, s := range cfg.LastResort {
		if !slices.Contains(servers, s) {
			last = append(last, s)
		}
	}
	if len(last) == 0 {
		return nil
	}
	lines := []string{"last_resort " + nameserver.Join(last)}
	if cfg.LastResortMark != 0 {
		lines = append(lines, fmt.Sprintf("mark %d", cfg.LastResortMark))
	}
	return lines
}

// askLines renders the directive for servers in the order written, as a resolver library uses them.
func askLines(servers []nameserver.Address, body ...string) []string {
	line := dirAsk + " " + nameserver.Join(servers)
	if len(body) == 0 {
		return []string{line}
	}
	lines := []string{line + " {"}
	for _, b := range body {
		lines = append(lines, "    "+b)
	}
	return append(lines, "}")
}
