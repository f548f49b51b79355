package corefile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/bufsize"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// hits answers at one address, before CoreDNS, what the cache or the edge's zones have. It leads a question by the same zones and the
// same plugins as CoreDNS would, and leaves it to CoreDNS wherever a plugin wants to see a message.
type hits struct {
	zones   fastpath.Zones[fastpath.Handler] // nil: that zone's are CoreDNS's
	options bool                             // the plugins look at EDNS options
}

// Answer implements hit.Handler.
func (h *hits) Answer(b []byte, q *fastpath.Question) ([]byte, queryinfo.Level, bool) {
	if plain := q.ReadOptions(); !plain || len(q.Options) > 0 && !h.options {
		return b, queryinfo.Miss, false
	}
	if in, _ := h.zones.Find(&q.Plain); in != nil {
		return in.Answer(b, q)
	}
	return b, queryinfo.Miss, false
}

// Hits returns who answers before the chain what comes to an address; nil: nobody.
func (c *Chain) Hits(at netip.AddrPort) fastpath.Handler {
	if h := c.hits[at]; h != nil {
		return h
	}
	return nil
}

// served is a server block.
type served struct {
	config *dnsserver.Config // of its first zone; the plugins are all zones'
	zones  []string
}

// passer is a plugin that can do its part of a hit without a message.
type passer interface {
	// Hit returns the plugin's part of the hits of one zone of its block, at one server, before next; nil: it has to see messages.
	// next is nil for the last one: the cache or the edge's zones.
	Hit(server *dnsserver.Server, zone string, next fastpath.Handler) fastpath.Handler
}

// hitsOf finds who answers before the chain, at each address. options says that the plugins look at EDNS options.
func hitsOf(blocks map[int]served, servers map[netip.AddrPort]*dnsserver.Server, options bool) (map[netip.AddrPort]*hits, error) {
	out := map[netip.AddrPort]*hits{}
	for _, b := range blocks {
		if b.config.ViewName != "" || len(b.config.FilterFuncs) > 0 {
			return nil, errors.New("a server block looks at who asks before its plugins do")
		}
		plugins := pluginsOf(b.config)
		for at, server := range servers {
			if !slices.ContainsFunc(b.config.ListenHosts, func(host string) bool { return is(host, at.Addr()) }) {
				continue
			}
			if out[at] == nil {
				out[at] = &hits{options: options}
			}
			for _, zone := range b.zones {
				if err := out[at].zones.Add(zone, passing(plugins, server, zone)); err != nil {
					return nil, fmt.Errorf("zone %s: %w", zone, err)
				}
			}
		}
	}
	return out, nil
}

// is reports whether a host that a block binds is an address. The chain's port is one.
func is(host string, address netip.Addr) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap() == address
}

// pluginsOf lists a block's plugins in the order in which they see a question. As CoreDNS does for each address, it links them, each
// to the same one as before.
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

// passing joins the plugins' parts of a hit; nil where one of those that come before the cache or the edge's zones, or these, have to
// see messages.
func passing(plugins []plugin.Handler, server *dnsserver.Server, zone string) fastpath.Handler {
	last := slices.IndexFunc(plugins, func(p plugin.Handler) bool { return p.Name() == dirCache || p.Name() == dirShared })
	var next fastpath.Handler
	for _, p := range slices.Backward(plugins[:last+1]) {
		switch p := p.(type) {
		case passer:
			next = p.Hit(server, zone, next)
		case bufsize.Bufsize:
			next = smaller{next, uint16(min(p.Size, 1<<16-1))}
		default:
			if p.Name() != dirErrors { // it sees failures of plugins alone, and a hit is none
				return nil
			}
		}
		if next == nil {
			return nil
		}
	}
	return next
}

// smaller is the plugin bufsize's part of a hit.
type smaller struct {
	next fastpath.Handler
	size uint16
}

// Answer implements hit.Handler.
func (s smaller) Answer(b []byte, q *fastpath.Question) ([]byte, queryinfo.Level, bool) {
	q.Size, q.Most = min(q.Size, s.size), min(q.Most, s.size)
	return s.next.Answer(b, q)
}

// Slow tells why a zone's hits go through CoreDNS although the fast path is on.
type Slow struct {
	Zones   []string
	Plugins []string // those that see each question, by their directives
}

func (s Slow) String() string {
	verb := "sees"
	if len(s.Plugins) > 1 {
		verb = "see"
	}
	return fmt.Sprintf("hits of %s go through CoreDNS: %s %s each question", strings.Join(s.Zones, ", "), strings.Join(s.Plugins, ", "), verb)
}

// tellSlow says once which zones have no fast path.
func (b *Builder) tellSlow(cfg Config) error {
	slow, err := SlowZones(cfg)
	for _, s := range slow {
		b.log.Info("hits go through CoreDNS", "zones", strings.Join(s.Zones, " "), "seen_by", strings.Join(s.Plugins, " "))
	}
	return err
}

// SlowZones lists the server blocks with a cache of which hits go through CoreDNS, since a plugin before the cache sees each question.
func SlowZones(cfg Config) ([]Slow, error) {
	text, err := Render(cfg)
	if err != nil {
		return nil, err
	}
	blocks, err := caddyfile.Parse("Corefile", strings.NewReader(text), nil)
	if err != nil {
		return nil, inRendered(err)
	}
	var out []Slow
	before, _, _ := strings.Cut(strings.Join(directives(), " "), " "+dirCache+" ")
	for _, b := range blocks {
		if b.Tokens[dirCache] == nil {
			continue
		}
		var s Slow
		for _, key := range b.Keys {
			zone, _, _ := strings.Cut(key, ":")
			s.Zones = append(s.Zones, zone)
		}
		for _, d := range strings.Fields(before) {
			if b.Tokens[d] != nil && !slices.Contains(passed(), d) {
				s.Plugins = append(s.Plugins, d)
			}
		}
		if s.Plugins != nil {
			out = append(out, s)
		}
	}
	return out, nil
}

// passed are the directives before the cache that a hit may pass by. TestSlowZones holds them against what passing does.
func passed() []string {
	return []string{dirBufsize, dirBind, dirDebug, dirPprof, dirMetrics, dirErrors, dirSearchPath}
}
