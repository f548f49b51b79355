package cache

import (
	"fmt"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/offload/entries"
)

// Setup returns the set-up function of the cache directive, which the caller registers. All blocks of the process store their entries in
// store and count in m; blocks with equal scopes share entries. If offloader is not nil, blocks offer it entries for kernel hits.
func Setup(store *answers.Store, m *Metrics, offloader *entries.Offloader) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		if m.err != nil {
			return plugin.Error("cache", fmt.Errorf("register metrics: %w", m.err))
		}
		p, err := parse(c)
		if err != nil {
			return plugin.Error("cache", err)
		}
		neighbours, err := around(c)
		if err != nil {
			return plugin.Error("cache", err)
		}
		cache := newCache(p, store, store.Space(p.scope(c.ServerBlockKeys, neighbours)), m)
		cache.raw = neighbours.isRaw()
		if offloader != nil {
			cache.source = offloader.Source(entries.Source{Space: cache.space, Gap: cache.gap, Rotate: cache.rotate,
				ValidUntil: cache.validUntil})
		}
		// Only at start-up, because a configuration that is refused must change nothing.
		c.OnStartup(func() error {
			cache.space.Retain()
			cache.bound.Do(cache.setBounds)
			m.add(cache)
			return nil
		})
		c.OnRestartFailed(func() error { cache.setBounds(); return nil }) // the refused configuration may have set others at its start-up
		c.OnShutdown(func() error {
			m.remove(cache)
			cache.ahead.end()
			cache.space.Release()
			return nil
		})
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			cache.next = next
			return cache
		})
		return nil
	}
}
