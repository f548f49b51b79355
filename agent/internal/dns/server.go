package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/coredns/caddy"
)

// Server is one embedded CoreDNS. Its methods may be called from several goroutines; they wait for each other.
type Server struct {
	log     *slog.Logger
	plugins map[string]caddy.SetupFunc

	mu       sync.Mutex // guards the fields below
	instance *caddy.Instance
	config   Config // completed
	done     chan struct{}
}

// New makes a server that is not started. plugins are CoreDNS plugins of our own that the rendered Corefile uses: probe
// and metrics.
func New(log *slog.Logger, plugins ...Plugin) *Server {
	s := &Server{log: log, plugins: map[string]caddy.SetupFunc{}}
	for _, p := range plugins {
		s.plugins[p.Name] = p.Setup
	}
	return s
}

// ErrStarted and ErrStopped are returned by calls that come in the wrong order.
var (
	ErrStarted = errors.New("the server is started already")
	ErrStopped = errors.New("the server is not started")
)

// Check says whether a configuration could be served, plugins' arguments included. It listens on nothing and asks nobody
// (but reads the files that an operator's Corefile names). It is for a command that ends: CoreDNS has no way to end what a
// plugin's set-up has begun for a check, and the hosts plugin begins to watch its file.
func (s *Server) Check(cfg Config) error {
	input, _, err := prepare(cfg)
	if err != nil {
		return err
	}
	_, leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := caddy.ValidateAndExecuteDirectives(input, nil, true); err != nil {
		return inRendered(err)
	}
	return nil
}

// prepare renders cfg for caddy and completes it.
func prepare(cfg Config) (caddy.CaddyfileInput, Config, error) {
	text, err := Render(cfg)
	if err != nil {
		return caddy.CaddyfileInput{}, cfg, err
	}
	cfg, err = cfg.complete()
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}, cfg, err
}

// inRendered says which text a plugin's complaint counts its lines in.
func inRendered(err error) error {
	return fmt.Errorf("%w (lines as in neardns-agent config show --corefile)", err)
}

// Start listens on every address, UDP and TCP, and serves. Either all addresses are served when it returns, or none and
// the error names those that could not be had and, where it can be seen, by whom they are held (*BusyError).
// ctx bounds the start alone.
func (s *Server) Start(ctx context.Context, cfg Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance != nil {
		return ErrStarted
	}
	input, cfg, err := prepare(cfg)
	if err != nil {
		return err
	}
	if err := tryListen(ctx, cfg, cfg.Addresses); err != nil {
		return err
	}
	note, leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	bridge(s.log)
	instance, err := caddy.Start(input)
	if err != nil {
		note.discard()
		unbridge(s.log)
		return inRendered(fmt.Errorf("start: %w", err))
	}
	s.instance, s.config, s.done = instance, cfg, make(chan struct{})
	go func(done chan struct{}) { // ends with the instance and its successors by Restart, which share one count
		instance.Wait()
		close(done)
	}(s.done)
	s.awaitServing(ctx)
	return nil
}

// awaitServing is called with mu held, after a start or reload that succeeded.
func (s *Server) awaitServing(ctx context.Context) {
	if !awaitServing(ctx, s.config) {
		s.log.Debug("the server's sockets do not answer over loopback", "waited", servingWait)
	}
}

// Restart serves another configuration. Sockets of addresses that stay are handed over open, so no question over UDP and no
// new connection is lost. A TCP connection that is open is closed when what it has asked is answered; a question that
// crosses the close must be asked again, over a new one. The cache starts empty. When Restart returns an error the old
// configuration still serves.
func (s *Server) Restart(ctx context.Context, cfg Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance == nil {
		return ErrStopped
	}
	input, cfg, err := prepare(cfg)
	if err != nil {
		return err
	}
	fresh := cfg.Addresses
	if cfg.Port == s.config.Port {
		fresh = slices.DeleteFunc(slices.Clone(fresh), func(a netip.Addr) bool { return slices.Contains(s.config.Addresses, a) })
	}
	if err := tryListen(ctx, cfg, fresh); err != nil {
		return err
	}
	note, leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	bridge(s.log)
	instance, err := s.instance.Restart(input)
	switch {
	case err == nil:
	case note.instance != nil && note.instance != s.instance && !slices.Contains(caddy.Instances(), s.instance):
		// The new one serves and the old one is gone; only one of its plugins did not end as it should.
		s.log.Warn("a plugin of the old configuration did not shut down", "err", err)
		instance = note.instance
	default:
		if note.instance != s.instance {
			note.discard()
		}
		return inRendered(fmt.Errorf("restart: %w", err))
	}
	s.instance, s.config = instance, cfg
	s.awaitServing(ctx)
	return nil
}

// discard ends what an instance has begun that never came to serve.
func (m *made) discard() {
	// Before their start-up, some plugins' shutdown waits forever (file) for what was not begun.
	if m.instance != nil && m.started {
		m.instance.ShutdownCallbacks() // errors of a second kind; the first is being returned
	}
	// Sockets that were bound before the one that failed belong to nobody now; caddy drops them for the finalizers to
	// close. Until then they would swallow questions.
	runtime.GC()
}

// stopWait is CoreDNS's own grace of five seconds and some time to notice.
const stopWait = 7 * time.Second

// Stop answers what is being asked, for up to five seconds, and closes the sockets. The lease must be withdrawn before.
// Stopping a server that is not started does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instance == nil {
		return nil
	}
	_, leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	// Servers first: a miss that is being asked upstream still needs its forwarder.
	err = s.instance.Stop()
	err = errors.Join(append(s.instance.ShutdownCallbacks(), err)...)
	select {
	case <-s.done:
	case <-time.After(stopWait):
		err = errors.Join(err, fmt.Errorf("a socket is still served after %s", stopWait))
	}
	s.instance, s.config = nil, Config{}
	unbridge(s.log)
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// Done is closed when no socket of the server is served any more, by Stop or because all have died; nil before Start.
// One dead socket among several does not close it: the prober finds that one.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Config returns what is being served, with its defaults filled in.
func (s *Server) Config() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config
	c.Addresses = slices.Clone(c.Addresses)
	c.StubDomains = maps.Clone(c.StubDomains)
	c.Snippets = maps.Clone(c.Snippets)
	return c
}
