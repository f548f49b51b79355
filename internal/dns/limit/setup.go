package limit

import (
	"strconv"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Setup returns the directive's set-up function, which package corefile registers. All server blocks use gate.
func Setup(gate *Gate) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		limit, err := parse(c)
		if err != nil {
			return plugin.Error("limit", err)
		}
		// Only at start-up, because a configuration that is refused must change nothing. If the start-up of the next one fails, this
		// block sets its limit again.
		set := func() error { gate.SetLimit(limit); return nil }
		c.OnStartup(set)
		c.OnRestartFailed(set)
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			return &Limit{next: next, gate: gate}
		})
		return nil
	}
}

// parse reads "limit [MISSES]".
func parse(c *caddy.Controller) (int, error) {
	limit := DefaultLimit
	for i := 0; c.Next(); i++ {
		if i > 0 {
			return 0, plugin.ErrOnce
		}
		switch args := c.RemainingArgs(); len(args) {
		case 0:
		case 1:
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return 0, c.Errf("limit %q: write how many misses may be in flight, at least 1", args[0])
			}
			limit = n
		default:
			return 0, c.ArgErr()
		}
		if c.NextBlock() {
			return 0, c.Errf("unknown property %q", c.Val())
		}
	}
	return limit, nil
}
