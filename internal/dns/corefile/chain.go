package corefile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Chain is one CoreDNS: the plugins of one configuration and, for each address, the server that passes queries to them. It has no socket:
// sockets belong to the listener and outlive every chain, so a reload touches none of them. Its methods are safe for concurrent use, except
// for Close.
type Chain struct {
	log      *slog.Logger
	instance *caddy.Instance
	servers  map[netip.AddrPort]*dnsserver.Server
	hits     map[netip.AddrPort]*hits // nil: all is CoreDNS's
}

// errBuilt ends caddy.Start when everything is set up and no socket is open yet.
var errBuilt = errors.New("built")

// Build makes a chain from cfg, whose plugins run when it returns. It replaces before, which answers until it is closed, or is the first
// (nil).
func (b *Builder) Build(cfg Config, before *Chain) (*Chain, error) {
	if before == nil {
		c, err := b.build(cfg)
		if err != nil {
			unbridge(b.log)
		}
		return c, err
	}
	var errs []error
	for _, f := range before.instance.OnRestart {
		errs = append(errs, f())
	}
	var c *Chain
	err := errors.Join(errs...)
	if err == nil {
		c, err = b.build(cfg)
	}
	if err != nil {
		for _, f := range before.instance.OnRestartFailed {
			if again := f(); again != nil {
				b.log.Warn("plugin did not restore the old configuration", "err", again)
			}
		}
	}
	return c, err
}

// build makes a chain from cfg, whose plugins run when it returns. caddy cannot set up without listening, so an error of ours ends its
// start in the first callback after the plugins are compiled (see dispatch). build then does what caddy would do from there on, except for
// the sockets. The caller must not hold process.mu.
func (b *Builder) build(cfg Config) (*Chain, error) {
	input, cfg, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	leave, err := b.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	bridge(b.log)
	instance, err := caddy.Start(input)
	if err == nil {
		return nil, errors.Join(errors.New("the Corefile has none of the agent's own plugins"), instance.Stop())
	}
	if !errors.Is(err, errBuilt) {
		return nil, inRendered(err)
	}
	c := &Chain{log: b.log, instance: instance, servers: map[netip.AddrPort]*dnsserver.Server{}}
	// The second time for this context: caddy keeps the first servers to itself. Compiling the same plugins again links
	// the same handlers, as CoreDNS does for each further address.
	made, err := process.context.MakeServers()
	if err != nil {
		return nil, inRendered(err)
	}
	for _, m := range made {
		server, ok := m.(*dnsserver.Server)
		if !ok {
			return nil, fmt.Errorf("CoreDNS made a %T", m)
		}
		at, err := netip.ParseAddrPort(strings.TrimPrefix(server.Address(), "dns://"))
		if err != nil {
			return nil, fmt.Errorf("CoreDNS serves %s: %w", server.Address(), err)
		}
		c.servers[at] = server
	}
	for _, a := range cfg.Addresses {
		if c.servers[netip.AddrPortFrom(a, cfg.Port)] == nil {
			return nil, fmt.Errorf("CoreDNS does not serve %s", a)
		}
	}
	if cfg.FastPath {
		if c.hits, err = hitsOf(process.blocks, c.servers, cfg.Shared); err != nil {
			return nil, err
		}
		if err := b.logSlow(cfg); err != nil {
			return nil, err
		}
	}
	for _, startup := range instance.OnStartup {
		if err := startup(); err != nil {
			// Only now: before their start-up, some plugins' shutdown waits forever (file) for what was not begun.
			instance.ShutdownCallbacks() // errors of a second kind; the first is being returned
			return nil, inRendered(err)
		}
	}
	return c, nil
}

// ServeDNS answers a query that came to one of the addresses, by w; it may write nothing. It returns when the last plugin has. q goes with
// the query to all plugins, in its context; nil: no client sent it.
func (c *Chain) ServeDNS(at netip.AddrPort, w dns.ResponseWriter, r *dns.Msg, q *queryinfo.Query) {
	server := c.servers[at]
	server.ServeDNS(&queryContext{Context: context.Background(), server: server, query: q}, w, r)
}

// queryContext is the context of one query: the values that CoreDNS's server puts into two contexts, and the Query, in one.
type queryContext struct {
	context.Context
	server *dnsserver.Server
	query  *queryinfo.Query
}

// Value implements context.Context.
func (a *queryContext) Value(key any) any {
	switch key.(type) {
	case dnsserver.Key:
		return a.server
	case dnsserver.LoopKey:
		return 0
	case queryinfo.Key:
		return a.query
	}
	return nil
}

// Close ends the chain's plugins. A miss still needs its forwarder, so all queries must be answered before. final: no other chain follows.
func (c *Chain) Close(final bool) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if final {
		defer unbridge(c.log)
		return errors.Join(c.instance.ShutdownCallbacks()...)
	}
	var errs []error
	for _, shutdown := range c.instance.OnShutdown {
		errs = append(errs, shutdown())
	}
	return errors.Join(errs...)
}

// inRendered adds which text a plugin's error counts its lines in.
func inRendered(err error) error {
	return fmt.Errorf("%w (lines as in neardns-agent config show --corefile)", err)
}
