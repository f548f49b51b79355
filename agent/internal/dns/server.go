package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/coredns/caddy"
)

// Server is one embedded CoreDNS. Its methods may be called from several goroutines; they wait for each other.
type Server struct {
	log     *slog.Logger
	plugins map[string]caddy.SetupFunc
	crowd   *crowd

	mu     sync.Mutex // guards the fields below
	chain  *chain     // nil: not started
	points []*point
	config Config // completed
	census *census
	paused bool
	old    sync.WaitGroup // chains that are retiring
}

// census counts the points that are served.
type census struct {
	mu   sync.Mutex // guards n and over
	n    int
	over bool          // done is closed
	done chan struct{} // closed when none is left
}

// join counts points in, too late where done is closed: whoever waits for it starts the server anew.
func (c *census) join(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
}

func (c *census) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.n == 0 && !c.over {
		c.over = true
		close(c.done)
	}
}

// usual is what a scrape before the first Start shows for both limits.
const usual = 1024

// New makes a server that is not started. plugins are CoreDNS plugins of our own that the rendered Corefile uses: probe
// and metrics.
func New(log *slog.Logger, plugins ...Plugin) *Server {
	s := &Server{log: log, plugins: map[string]caddy.SetupFunc{}, crowd: newCrowd(Config{Misses: usual, Connections: usual})}
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
	leave, err := s.enter()
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

// Start listens on every address, UDP and TCP, and serves. Either all addresses are served when it returns, or none and
// the error names those that could not be had and, where it can be seen, by whom they are held (*BusyError).
// ctx bounds the start alone.
func (s *Server) Start(ctx context.Context, cfg Config) error { return s.StartOn(ctx, cfg, nil) }

// StartOn is Start with sockets that another process listens on. They are read as they are, with what lies in them; an
// address that has none gets a new one. StartOn owns inherited, and closes those that cfg has no address for.
func (s *Server) StartOn(ctx context.Context, cfg Config, inherited []Socket) error {
	defer closeAll(inherited) // points have descriptors of their own
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain != nil {
		return ErrStarted
	}
	done, err := cfg.complete()
	if err != nil {
		return err
	}
	// Sockets first: who is in the way is said before a plugin is set up.
	points, err := s.listen(ctx, done, done.Addresses, inherited)
	if err != nil {
		return err
	}
	c, err := s.build(cfg)
	if err != nil {
		for _, p := range points {
			_ = p.socket.Close() // never read
		}
		unbridge(s.log)
		return fmt.Errorf("start: %w", err)
	}
	s.census = &census{done: make(chan struct{})}
	s.chain, s.points, s.config, s.paused = c, points, done, false
	s.crowd.bound(done)
	s.serve(points)
	return nil
}

func closeAll(sockets []Socket) {
	for _, i := range sockets {
		_ = i.File.Close() // only a copy
	}
}

// serve is called with mu held.
func (s *Server) serve(points []*point) {
	s.census.join(len(points))
	for _, p := range points {
		p.serve(s.chain, s.census.leave)
	}
}

// Restart serves another configuration. Sockets of addresses that stay are not touched, nor are their connections: no
// question is lost. When Restart returns an error the old configuration still serves. What was asked of the old one is
// answered by it, for up to five seconds.
func (s *Server) Restart(ctx context.Context, cfg Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain == nil {
		return ErrStopped
	}
	next, err := cfg.complete()
	if err != nil {
		return err
	}
	stays := func(a netip.Addr) bool {
		return next.Port == s.config.Port && slices.Contains(next.Addresses, a) && slices.Contains(s.config.Addresses, a)
	}
	coming := slices.DeleteFunc(slices.Clone(next.Addresses), stays)
	if len(coming) > 0 {
		s.old.Wait() // one of them may be an address that went a moment ago
	}
	fresh, err := s.listen(ctx, next, coming, nil)
	if err != nil {
		return err
	}
	old := s.chain
	c, err := s.succeed(old, cfg)
	if err != nil {
		for _, p := range fresh {
			_ = p.socket.Close() // never read
		}
		return fmt.Errorf("restart: %w", err)
	}
	s.chain, s.config = c, next
	s.crowd.bound(next)
	kept := fresh
	s.serve(fresh)
	var gone []*point
	for _, p := range s.points {
		if stays(p.at.Addr()) {
			p.chain.Store(c)
			kept = append(kept, p)
		} else {
			gone = append(gone, p)
		}
	}
	s.points = kept
	s.old.Go(func() { // Stop waits for it
		err := each(gone, (*point).finish)
		if err = errors.Join(err, old.retire(drainMost, false)); err != nil {
			s.log.Warn("the old configuration did not end as it should", "err", err)
		}
	})
	return nil
}

// succeed builds the chain that comes after old, with the callbacks around it that caddy has for a reload.
func (s *Server) succeed(old *chain, cfg Config) (*chain, error) {
	var errs []error
	for _, f := range old.instance.OnRestart {
		errs = append(errs, f())
	}
	var c *chain
	err := errors.Join(errs...)
	if err == nil {
		c, err = s.build(cfg)
	}
	if err != nil {
		for _, f := range old.instance.OnRestartFailed {
			if again := f(); again != nil {
				s.log.Warn("a plugin did not go back to the old configuration", "err", again)
			}
		}
	}
	return c, err
}

// finish reads what is in the socket, answers it and ends the point.
func (p *point) finish() error {
	p.flush()
	return p.end()
}

// each calls f for all points at once and waits for them.
func each(points []*point, f func(*point) error) error {
	errs := make([]error, len(points))
	var wg sync.WaitGroup
	for i, p := range points {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Sockets returns a descriptor of each socket that is served, for a process that is to serve it too. The caller closes them.
// A socket that two processes read gives each question to one of them, and is gone when both have closed it.
func (s *Server) Sockets() ([]Socket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Socket
	for _, p := range s.points {
		f, err := p.socket.File()
		if err != nil {
			closeAll(out)
			return nil, fmt.Errorf("copy %s %s: %w", p.protocol, p.at, err)
		}
		out = append(out, Socket{Protocol: p.protocol, Address: p.at, File: f})
	}
	return out, nil
}

// Pause stops reading and accepting, until Resume. What comes waits in the sockets for whoever reads them; what was read is
// answered, and open connections are served. After Pause, Stop leaves what is unread to others.
func (s *Server) Pause() { s.pause(true) }

// Resume undoes Pause.
func (s *Server) Resume() { s.pause(false) }

func (s *Server) pause(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = yes
	for _, p := range s.points {
		if yes {
			p.pause()
		} else {
			p.resume()
		}
	}
}

// Stop answers what is in the sockets and what is being asked, and closes them: UDP at once, each connection after its next
// answer or after a second without a question, all of them after five seconds. The lease must be withdrawn before, so that
// nothing more comes. Stopping a server that is not started does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain == nil {
		return nil
	}
	finish := (*point).finish
	if s.paused {
		finish = (*point).end
	}
	err := each(s.points, finish)
	s.old.Wait()
	err = errors.Join(err, s.chain.retire(cutMost, true))
	s.chain, s.points, s.config = nil, nil, Config{}
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
	if s.census == nil {
		return nil
	}
	return s.census.done
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
