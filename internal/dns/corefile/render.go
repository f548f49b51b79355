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

// Directives that the agent adds to server blocks.
const (
	dirBind    = "bind"
	dirBufsize = "bufsize"
	dirProbe   = "probe"
	dirMetrics = "metrics"
	dirLimit   = "limit"
	dirShared  = "shared"
)

// Directives with CoreDNS's names on which the fast path depends, or which it may ignore.
const (
	dirCache  = "cache"
	dirDebug  = "debug"
	dirErrors = "errors"
	dirPprof  = "pprof"
)

// Directives for forwarding: the agent's own, and CoreDNS's, which an operator may use instead.
const (
	dirAsk     = "ask"
	dirForward = "forward"
	dirCancel  = "cancel"
)

// probeZone is the zone of the prober's queries, which the plugin probe answers.
const probeZone = "probe.neardns.invalid"

// How stale entries are served (RFC 8767, sections 5 and 6). The upstream has 500 ms to answer. Then the client gets the stale entry with a
// TTL of 30 s. The upstream is queried again for the entry after 30 s, or as soon as it has answered another query. 500 ms are a hundred
// times what kube-dns takes, and leave a client that waits for 1 s the other half.
const staleTerms = "verify 500ms 30s 30s"

// The cluster's own records change hands: minutes later, a pod's address may be another pod's. So their stale entries are served for a
// minute at most, and only if kube-dns sent no answer. Their TTL in replies is 5 s, and the upstream is queried again after 5 s, or as soon
// as it has answered another query.
const (
	clusterStale      = time.Minute
	clusterStaleTerms = "verify 0s 5s 5s"
)

// Which entries are refreshed before they expire: those with three hits at most a minute apart; denials too. With three hits, a name that
// is queried by chance causes no refresh.
const refreshTerms = "refresh 3 1m"

// The longest time in seconds for which a success is cached (for denials it is Cache.NegativeTTL), and the shortest for both. The longest
// is CoreDNS's. Its minimum of 5 s is not used, because it exceeds some TTLs. kube-dns's successes are cached for 30 s at most, as in
// NodeLocal DNSCache and in kube-dns's own cache, so that a deleted record is gone when pods expect it.
const (
	maxTTL        = 3600
	maxTTLCluster = 30
	minTTL        = 0
)

// missLimit limits the time of a miss if a snippet, or an Override with Binds, uses CoreDNS's forward; package forward has its own limit.
// CoreDNS waits for an answer for 2 s, but for a connection longer: if an address drops packets, the first connections take up to 30 s, and
// each query that waits for one holds a goroutine. 4 s are enough for two reads, and clients that wait for 5 s still get the failure.
const missLimit = "cancel 4s"

// directives lists the directives of a Corefile in the order in which their plugins see a query. It is CoreDNS's order
// (core/dnsserver/zdirectives.go), except that cancel comes after the cache, so that it does not affect hits. Of neardns's own plugins,
// limit comes after the cache for the same reason.
func directives() []string {
	return []string{dirBufsize, dirBind, dirDebug, dirPprof, dirProbe, dirMetrics, dirErrors, "log", "local", "dns64", "loadbalance",
		"rewrite", "acl", dirCache, dirLimit, dirCancel, "header", "template", "hosts", "file", dirShared, dirAsk, dirForward, "whoami"}
}

// block is one server block. Its directives are printed in the order of directives().
type block struct {
	zones []string
	lines map[string][]string // the lines of each directive in the Corefile
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

// Render returns the Corefile for cfg. It opens no file, except those that an operator's Corefile or snippet imports. Both may also contain
// {$NAME} for environment variables.
func Render(cfg Config) (string, error) {
	var blocks []*block
	var err error
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
		blocks = []*block{sharedZones()}
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

func bindLine(addresses []netip.Addr) string { return dirBind + " " + joinAddrs(addresses, " ") }

// rendered makes the server blocks of a configuration without Override: for the cluster's zones, each stub domain, all other names, and
// zones that only snippets name.
func rendered(cfg Config) ([]*block, error) {
	common := new(block)
	common.set(dirBufsize, fmt.Sprintf("%s %d", dirBufsize, bufferSize))
	common.set(dirMetrics, dirMetrics)
	common.set(dirCache, cacheLines(cfg.Cache, fromOthers)...)
	common.set(dirLimit, limitLine(cfg))
	common.set(dirErrors, "errors")
	switch cfg.Queries {
	case QueriesOff, "":
		// At most two lines a minute for each server block: the first failure at once, and later how many there were. If an upstream is down,
		// thousands of queries fail, and the metrics count them.
		common.set(dirErrors, "errors {", "    consolidate 1m .* warning show_first", "}")
	case QueriesAll:
		common.set("log", "log")
	}

	cluster := common.clone(cfg.ClusterDomain, "in-addr.arpa", "ip6.arpa")
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
			delete(blocks[at].lines, dirAsk) // its plugin comes before forward, and would leave it no query
			if lines[dirCancel] == nil {
				blocks[at].set(dirCancel, missLimit)
			}
		}
	}
	return blocks, nil
}

// sharedZones makes the server block of an edge's zones. It has no upstream, and refuses names outside its zones.
func sharedZones() *block {
	b := &block{zones: []string{"."}}
	b.set(dirBufsize, fmt.Sprintf("%s %d", dirBufsize, bufferSize))
	b.set(dirMetrics, dirMetrics)
	b.set(dirShared, dirShared)
	return b
}

// answersOf sets the cache's answers_of to "cluster" if all servers are cluster DNS addresses. Then adding or removing such an address
// costs no entries. If the operator names other servers, it returns nothing, and their addresses identify the source of the answers.
func answersOf(cfg Config) []string {
	own := func(s nameserver.Address) bool { return !slices.Contains(cfg.LastResort, s) }
	if len(cfg.Cluster) == 0 || slices.ContainsFunc(cfg.Cluster, own) {
		return nil
	}
	return []string{"answers_of cluster"}
}

// origin is where a cache's answers come from.
type origin int

const (
	fromOthers  origin = iota // other servers
	fromCluster               // kube-dns, for names outside the cluster
	ofCluster                 // kube-dns, for the cluster's own names
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

// askCluster renders the forwarding directive for kube-dns. It uses TCP, because UDP from a node to a ClusterIP loses packets in
// conntrack races. The cluster DNS addresses are the last resort, because pods would use them without neardns.
func askCluster(cfg Config) []string {
	body := append([]string{"tcp", "holds " + cfg.ClusterDomain}, resort(cfg, cfg.Cluster)...)
	return askLines(cfg.Cluster, body...)
}

// externalResort renders the last resort for names outside the cluster: kube-dns, which pods would use without neardns.
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

// askLines renders the forwarding directive with the servers in the given order, which is the order of preference. body is the text inside
// its braces.
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
