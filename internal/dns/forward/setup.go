package forward

import (
	"slices"
	"strconv"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Setup returns the directive's set-up function, which package corefile registers. The servers come from ss, which outlives reloads.
func Setup(ss *Servers) caddy.SetupFunc {
	return func(c *caddy.Controller) error {
		a, err := parse(c)
		if err != nil {
			return plugin.Error("ask", err)
		}
		a.servers = ss
		a.zones = plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys)
		dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return a })
		c.OnStartup(func() error { a.start(); return nil })
		c.OnShutdown(func() error { a.stop(); return nil })
		return nil
	}
}

// parse reads the directive.
func parse(c *caddy.Controller) (*Block, error) {
	a := new(Block)
	for c.Next() {
		if a.specs != nil {
			return nil, plugin.ErrOnce
		}
		var err error
		if a.specs, err = parseServers(c, nil); err != nil {
			return nil, err
		}
		for c.NextBlock() {
			if err := a.property(c); err != nil {
				return nil, err
			}
		}
	}
	return a, nil
}

func (a *Block) property(c *caddy.Controller) error {
	switch name := c.Val(); name {
	case "tcp":
		if len(c.RemainingArgs()) != 0 {
			return c.ArgErr()
		}
		a.stream = true
	case "holds":
		zones := c.RemainingArgs()
		if len(zones) == 0 {
			return c.ArgErr()
		}
		for _, z := range zones {
			a.holds = append(a.holds, plugin.Host(z).NormalizeExact()...)
		}
	case "last_resort":
		var err error
		a.resorts, err = parseServers(c, a.specs)
		return err
	case "mark":
		args := c.RemainingArgs()
		if len(args) != 1 {
			return c.ArgErr()
		}
		n, err := strconv.ParseUint(args[0], 0, 31)
		if err != nil {
			return c.Errf("mark %q: write a number below 2147483648", args[0])
		}
		for i := range a.resorts {
			a.resorts[i].mark = int(n)
		}
		if a.resorts == nil {
			return c.Err("mark without a last_resort before it that names another server: it is for packets to the last resort")
		}
	default:
		return c.Errf("unknown property %q: write tcp, holds, last_resort or mark", name)
	}
	return nil
}

// parseServers reads the rest of the line as servers. It leaves out duplicates, and servers in taken, which are tried before these.
func parseServers(c *caddy.Controller, taken []spec) ([]spec, error) {
	args := c.RemainingArgs()
	if len(args) == 0 {
		return nil, c.ArgErr()
	}
	if len(args) > nameserver.MaxServers {
		return nil, c.Errf("%d servers: at most %d are taken", len(args), nameserver.MaxServers)
	}
	var out []spec
	for _, arg := range args {
		a, err := nameserver.Parse(arg)
		if err != nil {
			return nil, c.Err(err.Error())
		}
		if !slices.ContainsFunc(slices.Concat(taken, out), func(s spec) bool { return s.Address == a }) {
			out = append(out, spec{Address: a})
		}
	}
	return out, nil
}
