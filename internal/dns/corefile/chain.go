package corefile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Chain is one embedded CoreDNS: the plugins of one configuration and, for each address, the CoreDNS server that passes queries to them. It
// has no socket: sockets belong to the listener, so a reload does not touch them. Its methods, except for Close, are safe for concurrent
// use.
type Chain struct {
	instance *caddy.Instance
	servers  map[netip.AddrPort]*dnsserver.Server
	hits     map[netip.AddrPort]*hits // nil: there is no fast path
}

// errBuilt stops caddy.Start when all plugins are set up and no socket is open yet.
var errBuilt = errors.New("built")

// Build makes a chain from cfg and starts its plugins. The chain replaces before, which answers until it is closed; before is nil for the
// first chain.
func (b *Builder) Build(cfg Config, before *Chain) (*Chain, error) {
	if before == nil {
		return b.build(cfg)
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
				b.log.Warn("configuration reload failed, and a CoreDNS plugin could not restore the old one", "err", again)
			}
		}
	}
	return c, err
}

// build makes a chain from cfg and starts its plugins. caddy.Start sets plugins up, but then listens, so the first start-up callback
// stops it with errBuilt, after the plugins are compiled (see dispatch). build then does what caddy.Start would do next, except for
// the sockets. The caller must not hold process.mu.
func (b *Builder) build(cfg Config) (*Chain, error) {
	input, err := prepare(cfg)
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
	c := &Chain{instance: instance, servers: map[netip.AddrPort]*dnsserver.Server{}}
	// caddy has made servers already, but does not hand them out, so make them again. Compiling the same plugins again links equal handlers,
	// as CoreDNS does for each further address.
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
		if c.hits, err = b.hitsOf(process.blocks, c.servers, cfg.Shared); err != nil {
			return nil, err
		}
	}
	// All of them, also after an error: the shutdown of a plugin that was not started may wait forever (file), or undo what another chain
	// has begun (cache).
	var errs []error
	for _, startup := range instance.OnStartup {
		errs = append(errs, startup())
	}
	if err := errors.Join(errs...); err != nil {
		instance.ShutdownCallbacks() // its errors are dropped; the start-up's error is returned
		return nil, inRendered(err)
	}
	return c, nil
}

// ServeDNS passes a query that came to the address at to the plugins. They answer by writing to w, or leave it unanswered. It returns
// when all plugins have returned. The plugins find q in the context. If the agent itself sent the query, q.Client is not valid.
func (c *Chain) ServeDNS(at netip.AddrPort, w dns.ResponseWriter, r *dns.Msg, q *queryinfo.Query) {
	server := c.servers[at]
	server.ServeDNS(&queryContext{Context: context.Background(), server: server, query: q}, w, r)
}

// queryContext is the context of one query. It has the values that CoreDNS's server would put into two contexts, and the queryinfo.Query.
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

// Close ends the chain's plugins. A query that is still in progress may then fail, because a miss needs the forwarding plugin. final is
// true if no other chain replaces this one.
func (c *Chain) Close(final bool) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if final {
		return errors.Join(c.instance.ShutdownCallbacks()...)
	}
	var errs []error
	for _, shutdown := range c.instance.OnShutdown {
		errs = append(errs, shutdown())
	}
	return errors.Join(errs...)
}

// inRendered adds to a plugin's error that its line numbers are those of the rendered Corefile.
func inRendered(err error) error {
	return fmt.Errorf("%w (lines as in neardns-agent config show --corefile)", err)
}
