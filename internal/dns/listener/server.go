// Package listener owns the DNS sockets: it reads queries, bounds what each client may use, and passes each query to the plugin chain.
//
// It guarantees that replacing the chain loses no query. It reads no signals, flags or files, writes no packet rules, and does not decide
// whether pods may reach it: the lease does.
//
// On failure, Start serves none of the addresses and names the program that holds one, and Restart leaves the old chain serving.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Config is what the sockets are made from, and what clients may use of them. The server keeps no reference to its slice.
type Config struct {
	// Addresses are listened on, UDP and TCP each.
	Addresses []netip.Addr
	// Deaf: listen on no address. Only this process queries the chain, as at the first of Addresses (Query, Fetch).
	Deaf bool
	Port uint16
	// Transparent sets IP_TRANSPARENT on the sockets, by which the switch distinguishes them from another program's at the same
	// addresses. It needs CAP_NET_ADMIN or CAP_NET_RAW and changes nothing else for a socket that is bound to a local address.
	Transparent bool
	// Misses is how many queries may wait for upstreams: so many more datagrams may be in progress.
	Misses int
	// Connections bounds the open TCP connections, at all addresses together.
	Connections int
}

// Chain answers the queries that the listener has read. The listener calls Close once, when the chain has answered all its queries, or when
// its time is over.
type Chain interface {
	// ServeDNS answers a query that came to an address, by w, or leaves it unanswered. It returns when the last plugin has, and notes in q
	// at which level the answer was found. It is safe for concurrent use.
	ServeDNS(at netip.AddrPort, w dns.ResponseWriter, r *dns.Msg, q *queryinfo.Query)
	// FastPath returns what answers hits at an address as the chain would; nil: nothing does.
	FastPath(at netip.AddrPort) fastpath.Handler
	// Close ends the chain. final: no other chain follows.
	Close(final bool) error
}

// Build makes the chain that replaces another one, or the first (nil). The old one answers meanwhile, and stays if Build fails.
type Build func(before Chain) (Chain, error)

// Server is the listener of one agent. Its methods may be called from several goroutines; they wait for each other.
type Server struct {
	log      *slog.Logger
	observer Observer // nil: none
	quota    *quota
	workers  *workers

	mu     sync.Mutex // guards the fields below
	chain  *serving   // nil: not started
	points []*point
	config Config
	census *census
	paused bool
	old    sync.WaitGroup // chains that are retiring
}

// census counts the points that serve.
type census struct {
	mu   sync.Mutex // guards n and over
	n    int
	over bool          // done is closed
	done chan struct{} // closed when none is left
}

// join counts points in. If done is closed already, it is too late, and the waiter restarts the server.
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

// usual is what both limits are before the first Start, for a scrape.
const usual = 1024

// New makes a server that is not started. observer may be nil.
func New(log *slog.Logger, observer Observer) *Server {
	return &Server{log: log, observer: observer, quota: newQuota(Config{Misses: usual, Connections: usual}), workers: new(workers)}
}

// ErrStarted and ErrStopped are returned by calls that come in the wrong order.
var (
	ErrStarted = errors.New("the server is started already")
	ErrStopped = errors.New("the server is not started")
)

// Start listens on every address, UDP and TCP, and serves by the chain that build makes. When it returns, either all addresses are served,
// or none, and the error names those that failed and, if visible, the processes that hold them (*BusyError). ctx bounds only the start.
//
// inherited are sockets that another process listens on. They are read as they are, with what lies in them; an address that has none
// gets a new one. Start owns inherited, and closes those that cfg has no address for.
func (s *Server) Start(ctx context.Context, cfg Config, build Build, inherited []Socket) error {
	defer CloseAll(inherited) // points have descriptors of their own
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain != nil {
		return ErrStarted
	}
	// Sockets first, so that a conflict is reported before a plugin is set up.
	points, err := s.listen(ctx, cfg, cfg.heard(), inherited)
	if err != nil {
		return err
	}
	c, err := build(nil)
	if err != nil {
		for _, p := range points {
			_ = p.socket.Close() // never read
		}
		return fmt.Errorf("start: %w", err)
	}
	s.census = &census{done: make(chan struct{})}
	s.chain, s.points, s.config, s.paused = newServing(c), points, cfg.clone(), false
	s.quota.bound(cfg)
	s.workers.open()
	s.serve(points)
	return nil
}

// heard are the addresses to listen on.
func (c Config) heard() []netip.Addr {
	if c.Deaf {
		return nil
	}
	return c.Addresses
}

func (c Config) clone() Config {
	c.Addresses = slices.Clone(c.Addresses)
	return c
}

// CloseAll closes sockets that are not read any more.
func CloseAll(sockets []Socket) {
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

// Restart serves by another chain, and with other addresses and limits. Sockets of addresses that stay are not touched, nor are
// their connections: no query is lost. When Restart returns an error, the old chain still serves. The old chain answers queries that it has
// already, for up to five seconds.
func (s *Server) Restart(ctx context.Context, next Config, build Build) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain == nil {
		return ErrStopped
	}
	stays := func(a netip.Addr) bool {
		return next.Port == s.config.Port && slices.Contains(next.Addresses, a) && slices.Contains(s.config.Addresses, a)
	}
	coming := slices.DeleteFunc(slices.Clone(next.heard()), stays)
	if len(coming) > 0 {
		s.old.Wait() // one of them may be an address that went a moment ago
	}
	fresh, err := s.listen(ctx, next, coming, nil)
	if err != nil {
		return err
	}
	old := s.chain
	made, err := build(old.chain)
	if err != nil {
		for _, p := range fresh {
			_ = p.socket.Close() // never read
		}
		return fmt.Errorf("restart: %w", err)
	}
	c := newServing(made)
	s.chain, s.config = c, next.clone()
	s.quota.bound(next)
	kept := fresh
	s.serve(fresh)
	var gone []*point
	for _, p := range s.points {
		if stays(p.at.Addr()) {
			p.lead(c)
			kept = append(kept, p)
		} else {
			gone = append(gone, p)
		}
	}
	s.points = kept
	s.old.Go(func() { // Stop waits for it
		err := each(gone, (*point).finish)
		if err = errors.Join(err, old.retire(maxDrain, false)); err != nil {
			s.log.Warn("old configuration did not end cleanly", "err", err)
		}
	})
	return nil
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
// If two processes read a socket, each query goes to one of them. The socket is gone when both have closed it.
func (s *Server) Sockets() ([]Socket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Socket
	for _, p := range s.points {
		f, err := p.socket.File()
		if err != nil {
			CloseAll(out)
			return nil, fmt.Errorf("copy %s %s: %w", p.protocol, p.at, err)
		}
		out = append(out, Socket{Protocol: p.protocol, Address: p.at, File: f})
	}
	return out, nil
}

// Addresses are those that are served now, by sockets or for this process.
func (s *Server) Addresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.config.Addresses)
}

// Pause stops reading and accepting, until Resume. Queries then wait in the sockets for another process that reads them; those that were
// read are answered, and open connections are served. After Pause, Stop leaves unread queries to others.
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

// Stop answers the queries in the sockets and in progress, and closes the sockets: UDP at once, each connection after its next answer or
// after a second without a query, all of them after five seconds. The lease must be withdrawn before, so that no more queries arrive.
// Stopping a server that is not started does nothing.
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
	s.workers.dismiss()
	err = errors.Join(err, s.chain.retire(maxCut, true))
	s.chain, s.points, s.config = nil, nil, Config{}
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// Done is closed when no socket of the server is served any more, because of Stop or because all have died; nil before Start. One dead
// socket among several does not close it: the prober finds that one.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.census == nil {
		return nil
	}
	return s.census.done
}
