package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// chain is one CoreDNS: the plugins of one configuration and, for each address, the server that hands them questions. It
// has no socket: those belong to Server and outlive every chain, so a reload touches none of them.
type chain struct {
	instance *caddy.Instance
	servers  map[netip.AddrPort]*dnsserver.Server

	users atomic.Int64  // questions under way, and one more until retire
	idle  chan struct{} // closed when users has come to zero
}

// errBuilt ends caddy.Start when everything is set up and nothing listens yet.
var errBuilt = errors.New("built")

// build makes a chain from cfg, whose plugins run when it returns. caddy has no way to set up without listening, so its
// start is ended by an error of ours from the first callback after the plugins are compiled (see dispatch); what caddy would
// do from there on, but for the sockets, is done here. It is called with nothing of process held.
func (s *Server) build(cfg Config) (*chain, error) {
	input, cfg, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	bridge(s.log)
	instance, err := caddy.Start(input)
	if err == nil {
		return nil, errors.Join(errors.New("the Corefile has none of the agent's own plugins"), instance.Stop())
	}
	if !errors.Is(err, errBuilt) {
		return nil, inRendered(err)
	}
	c := &chain{instance: instance, servers: map[netip.AddrPort]*dnsserver.Server{}, idle: make(chan struct{})}
	c.users.Store(1)
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
	for _, startup := range instance.OnStartup {
		if err := startup(); err != nil {
			// Only now: before their start-up, some plugins' shutdown waits forever (file) for what was not begun.
			instance.ShutdownCallbacks() // errors of a second kind; the first is being returned
			return nil, inRendered(err)
		}
	}
	return c, nil
}

// enter counts a question in. It fails once the chain was retired and nobody uses it any more.
func (c *chain) enter() bool {
	for {
		n := c.users.Load()
		if n == 0 {
			return false
		}
		if c.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (c *chain) leave() {
	if c.users.Add(-1) == 0 {
		close(c.idle)
	}
}

func (c *chain) answer(at netip.AddrPort, w dns.ResponseWriter, r *dns.Msg) {
	// As dnsserver.Server's own handlers do.
	server := c.servers[at]
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, server)
	server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), w, r)
}

// retire waits until what the chain was asked is answered, for up to grace, and ends its plugins: a miss still needs its
// forwarder. No point may lead to it any more.
func (c *chain) retire(grace time.Duration, final bool) error {
	c.leave()
	select {
	case <-c.idle:
	case <-time.After(grace):
	}
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

// inRendered says which text a plugin's complaint counts its lines in.
func inRendered(err error) error {
	return fmt.Errorf("%w (lines as in neardns-agent config show --corefile)", err)
}
