package ask

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// maxServers bounds a list: more are never asked for one question, nor of use.
const maxServers = 15

// Setup returns the directive's set-up function. The servers named are taken from and kept in ss, which outlives reloads.
// It registers nothing; whoever assembles the server does.
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
func parse(c *caddy.Controller) (*Ask, error) {
	a := new(Ask)
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

func (a *Ask) property(c *caddy.Controller) error {
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
			return c.Err("mark without last_resort before it: it is for packets to the last resort")
		}
	default:
		return c.Errf("unknown property %q: write tcp, holds, last_resort or mark", name)
	}
	return nil
}

// parseServers reads the rest of the line as servers. Those in taken are left out: they are asked before.
func parseServers(c *caddy.Controller, taken []spec) ([]spec, error) {
	args := c.RemainingArgs()
	if len(args) == 0 {
		return nil, c.ArgErr()
	}
	if len(args) > maxServers {
		return nil, c.Errf("%d servers: at most %d are taken", len(args), maxServers)
	}
	var out []spec
next:
	for _, arg := range args {
		sp, err := parseSpec(arg)
		if err != nil {
			return nil, c.Errf("%s: %v", arg, err)
		}
		for _, t := range append(append([]spec(nil), taken...), out...) {
			if t.name == sp.name {
				continue next
			}
		}
		out = append(out, sp)
	}
	return out, nil
}

// nameBytes may stand in a host's name (RFC 1123, section 2.1), and the underscore, which some have.
const nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"

// parseSpec reads address[:port] or tls://address[%name][:port]; IPv6 addresses with a port or a name stand in brackets.
func parseSpec(text string) (spec, error) {
	rest, secure := strings.CutPrefix(text, "tls://")
	sp := spec{tls: secure}
	port := uint16(53)
	if secure {
		port = 853
		host, tail := rest, ""
		if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, ']') && (rest[0] == '[' || strings.Count(rest[:i], ":") == 0) {
			host, tail = rest[:i], rest[i:]
		}
		inside := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		inside, sp.cert, _ = strings.Cut(inside, "%")
		if strings.Trim(sp.cert, nameBytes) != "" {
			return sp, fmt.Errorf("%q is not a name that a certificate can have", sp.cert)
		}
		if strings.HasPrefix(host, "[") {
			inside = "[" + inside + "]"
		}
		rest = inside + tail
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]"))
	if err == nil {
		sp.addr = netip.AddrPortFrom(addr, port)
	} else if sp.addr, err = netip.ParseAddrPort(rest); err != nil {
		return sp, errors.New("not a server: write address, address:port or tls://address%name")
	}
	if a := sp.addr.Addr(); a.IsUnspecified() || a.IsMulticast() || a.Is4In6() || a.Zone() != "" || sp.addr.Port() == 0 {
		return sp, errors.New("not a server's address")
	}
	sp.name = sp.addr.String()
	if secure {
		host := sp.addr.Addr().String()
		if sp.cert != "" {
			host += "%" + sp.cert
		}
		if sp.addr.Addr().Is6() {
			host = "[" + host + "]"
		}
		sp.name = fmt.Sprintf("tls://%s:%d", host, sp.addr.Port())
	}
	return sp, nil
}
