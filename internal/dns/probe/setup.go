package probe

import (
	"net/netip"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Setup returns the set-up function of "probe INSTANCE", which the caller registers. Only package corefile writes the directive. sources
// are the addresses of the prober; only they and loopback addresses get the instance's ID.
func Setup(sources ...netip.Addr) caddy.SetupFunc {
	sources = slices.Clone(sources)
	return func(c *caddy.Controller) error {
		p := &Probe{Sources: sources}
		if !c.Next() || !c.Args(&p.Instance) {
			return plugin.Error("probe", c.ArgErr())
		}
		dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return p })
		return nil
	}
}
