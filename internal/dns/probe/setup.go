package probe

import (
	"net/netip"
	"slices"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Setup returns the directive's set-up function, which the caller registers. sources are the addresses of the prober; only they and
// loopback addresses get the instance's ID.
func Setup(sources ...netip.Addr) caddy.SetupFunc {
	sources = slices.Clone(sources)
	return func(c *caddy.Controller) error {
		p, err := parse(c)
		if err != nil {
			return plugin.Error("probe", err)
		}
		p.Sources = sources
		dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return p })
		return nil
	}
}

// parse reads "probe INSTANCE".
func parse(c *caddy.Controller) (*Probe, error) {
	p := new(Probe)
	for c.Next() {
		if p.Instance != "" {
			return nil, plugin.ErrOnce
		}
		args := c.RemainingArgs()
		if len(args) != 1 {
			return nil, c.ArgErr()
		}
		// A TXT string has at most 255 bytes, and the answer has one string.
		if args[0] == "" || len(args[0]) > 255 {
			return nil, c.Errf("instance name of %d bytes: write 1 to 255", len(args[0]))
		}
		p.Instance = args[0]
		if c.NextBlock() {
			return nil, c.Errf("unknown property %q", c.Val())
		}
	}
	return p, nil
}
