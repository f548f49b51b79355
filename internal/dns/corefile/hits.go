package corefile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/bufsize"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// hits is the fast path of one address, which answers hits without CoreDNS. It finds the zone, and does what the plugins before the cache
// would do. It leaves a query to CoreDNS if a plugin must see its message.
type hits struct {
	zones   fastpath.Zones[*zoneHits] // a nil value means that CoreDNS answers the zone
	options bool                      // the authoritative zones read EDNS options
}

// zoneHits has what the plugins of one zone, at one server, do with a hit.
type zoneHits struct {
	maxSize uint16           // from bufsize: maximum size of a UDP answer in bytes
	counter *metrics.Counter // metrics; nil: nothing is counted
	answers fastpath.Handler // the cache, or the edge's zones
}

// Answer implements fastpath.Handler.
func (h *hits) Answer(b []byte, q *fastpath.Query) ([]byte, queryinfo.Level, bool) {
	if !q.Read(q.Wire) || len(q.OPT.Options) > 0 && !h.options {
		return b, queryinfo.Miss, false
	}
	z, _ := h.zones.Find(&q.Query)
	if z == nil {
		return b, queryinfo.Miss, false
	}
	q.OPT.Size, q.MaxSize = min(q.OPT.Size, z.maxSize), z.maxSize
	start := len(b)
	b, level, ok := z.answers.Answer(b, q)
	if ok {
		z.counter.Count(q, b[start:])
	}
	return b, level, ok
}

// FastPath returns the handler that answers hits at an address without the plugin chain, or nil if there is none.
func (c *Chain) FastPath(at netip.AddrPort) fastpath.Handler {
	if h := c.hits[at]; h != nil {
		return h
	}
	return nil
}

// served is a server block.
type served struct {
	config *dnsserver.Config // of its first zone; all its zones have the same plugins
	zones  []string
}

// hitsOf makes the fast path of each address. options is true if the authoritative zones use EDNS options. It logs which blocks' hits go
// through CoreDNS.
func (b *Builder) hitsOf(
	blocks map[int]served, servers map[netip.AddrPort]*dnsserver.Server, options bool,
) (map[netip.AddrPort]*hits, error) {
	out := map[netip.AddrPort]*hits{}
	for _, block := range blocks {
		plugins := pluginsOf(block.config)
		slow := ""
		for at, server := range servers {
			if !slices.ContainsFunc(block.config.ListenHosts, func(host string) bool { return is(host, at.Addr()) }) {
				continue
			}
			if out[at] == nil {
				out[at] = &hits{options: options}
			}
			for _, zone := range block.zones {
				var z *zoneHits
				z, slow = zoneHitsOf(plugins, server, zone)
				if err := out[at].zones.Add(zone, z); err != nil {
					return nil, fmt.Errorf("zone %s: %w", zone, err)
				}
			}
		}
		if slow != "" {
			b.log.Info("cache hits of these zones take the slow way through CoreDNS: this plugin must see each query",
				"zones", strings.Join(block.zones, " "), "plugin", slow)
		}
	}
	return out, nil
}

// is reports whether a host of a block's bind directive is the address. Its port is the chain's.
func is(host string, address netip.Addr) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap() == address
}

// pluginsOf lists a block's plugins in the order in which they see a query. It links them as CoreDNS does for each address, which gives
// equal handlers every time.
func pluginsOf(config *dnsserver.Config) []plugin.Handler {
	var out []plugin.Handler
	var stack plugin.Handler
	for _, link := range slices.Backward(config.Plugin) {
		stack = link(stack)
		out = append(out, stack)
	}
	slices.Reverse(out)
	return out
}

// zoneHitsOf makes a zone's fast path. It returns nil if the block has neither the cache nor the edge's zones, or if a plugin before them
// must see each message; slow is the first such plugin's name.
func zoneHitsOf(plugins []plugin.Handler, server *dnsserver.Server, zone string) (_ *zoneHits, slow string) {
	last := slices.IndexFunc(plugins, func(p plugin.Handler) bool { return p.Name() == dirCache || p.Name() == dirShared })
	z := &zoneHits{maxSize: 1<<16 - 1}
	for _, p := range plugins[:last+1] {
		switch p := p.(type) {
		case *metrics.Metrics:
			z.counter = p.Counter(server, zone)
		case bufsize.Bufsize:
			z.maxSize = min(z.maxSize, uint16(min(p.Size, 1<<16-1)))
		case interface {
			FastPath(server *dnsserver.Server, zone string) fastpath.Handler
		}:
			z.answers = p.FastPath(server, zone)
		default:
			if p.Name() != dirErrors { // the errors plugin only logs errors, and a hit returns none
				return nil, p.Name()
			}
		}
	}
	if z.answers == nil {
		return nil, ""
	}
	return z, ""
}
