// Package listener owns the DNS sockets: it reads queries, limits what each client may use, and passes the queries to the plugin chain or
// its fast path.
//
// Replacing the plugin chain loses no query. The package reads no signals, flags or configuration files, and writes no packet rules.
// Whether pods may reach its sockets is not decided here: the lease does that.
//
// If Start fails, it serves none of the addresses; if another program has one of them, the error names the program where it is visible. If
// Restart fails, the old plugin chain serves on.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/queryinfo"
)

// Config has the addresses of the sockets and the limits for clients. The server keeps no reference to its slice.
type Config struct {
	// Addresses are the addresses to listen on, each over UDP and TCP.
	Addresses []netip.Addr
	// Deaf: listen on no address. Only this process sends queries (Query, Fetch), as if to the first of Addresses.
	Deaf bool
	Port uint16
	// Transparent sets IP_TRANSPARENT or IPV6_TRANSPARENT on the sockets that the server opens. By that the switch distinguishes them from
	// another program's sockets at the same addresses. It needs CAP_NET_ADMIN or CAP_NET_RAW. It has no other effect on a socket that is bound
	// to a local address.
	Transparent bool
	// Misses is how many queries may wait for upstreams. Up to Misses + running UDP queries may be in progress.
	Misses int
	// Connections is the maximum of open TCP connections, of all addresses together.
	Connections int
}

// Chain is a plugin chain, which answers the queries that the listener has read. The listener calls Close once: when the chain has
// answered all its queries, or at the end of the time that they have for that.
type Chain interface {
	// ServeDNS answers a query that came to address at by writing to w, or leaves it unanswered. It returns when all plugins have
	// returned. It records in q whether the answer was a hit, stale or a miss. It is safe for concurrent use.
	ServeDNS(at netip.AddrPort, w dns.ResponseWriter, r *dns.Msg, q *queryinfo.Query)
	// FastPath returns a handler that answers some of the queries at an address without waiting, as the chain would, or nil if there is none.
	FastPath(at netip.AddrPort) fastpath.Handler
	// Close ends the chain. final is true if no other chain replaces it.
	Close(final bool) error
}

// Build makes a plugin chain that replaces before, or the first one if before is nil. The old chain still serves meanwhile, and stays if
// Build fails.
type Build func(before Chain) (Chain, error)

// Server is the listener of one agent or edge. It is safe for concurrent use. Calls of Start, Restart, Pause, Resume and Stop run one after
// the other; Query and Fetch begin between such calls, and may run during later ones.
type Server struct {
	log      *slog.Logger
	observer Observer // nil: none
	quota    *quota
	workers  *workers
	limits   limits

	mu     sync.Mutex // guards the fields below
	chain  *serving   // nil: not started
	points []*point
	config Config
	census *census
	paused bool
	old    sync.WaitGroup // chains that are retiring
}

// census counts the listening sockets (points) that are served.
type census struct {
	n    atomic.Int64
	over sync.Once     // closes done
	done chan struct{} // closed when none is left
}

// join adds n points. If the last one had ended before, done stays closed; the agent then starts the server again.
func (c *census) join(n int) { c.n.Add(int64(n)) }

func (c *census) leave() {
	if c.n.Add(-1) == 0 {
		c.over.Do(func() { close(c.done) })
	}
}

// usual is the value of Config's Misses and Connections before the first Start, for a scrape of the metrics.
const usual = 1024

// New returns a server that is not started. observer may be nil.
func New(log *slog.Logger, observer Observer) *Server {
	return &Server{log: log, observer: observer, quota: newQuota(Config{Misses: usual, Connections: usual}), workers: new(workers),
		limits: usualLimits}
}

// ErrStarted and ErrStopped mean that a method was called in the wrong state.
var (
	ErrStarted = errors.New("the server is started already")
	ErrStopped = errors.New("the server is not started")
)

// Start listens on every address over UDP and TCP, and serves with the plugin chain that build makes. It serves all addresses or, if it
// returns an error, none; ErrStarted changes nothing. For an address that cannot be used, the error has a *BusyError. ctx limits only the
// start.
//
// inherited are listening sockets of another process, which are served with the queries that wait in them. An address and protocol without
// one gets a new socket. Start closes all files of inherited; the server has copies of those that it serves.
func (s *Server) Start(ctx context.Context, cfg Config, build Build, inherited []Socket) error {
	defer CloseAll(inherited) // each point has a copy
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain != nil {
		return ErrStarted
	}
	// Open the sockets first, so that a conflict is reported before a plugin is set up.
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

// heard returns the addresses to listen on: none if Deaf is set.
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

// CloseAll closes the descriptors of sockets that the caller does not need any more.
func CloseAll(sockets []Socket) {
	for _, i := range sockets {
		_ = i.File.Close() // the descriptor is a copy, so the socket itself stays open elsewhere
	}
}

// serve starts to answer queries at points, which are listening sockets, with the current plugin chain. It is called with mu held.
func (s *Server) serve(points []*point) {
	s.census.join(len(points))
	for _, p := range points {
		p.serve(s.chain, s.census.leave)
	}
}

// Restart replaces the plugin chain, the addresses and the limits. The sockets and connections of addresses that stay are not touched, so
// no query is lost. After the removed addresses have ended, the old chain gets up to five seconds for the queries that it has. If Restart
// returns an error, the old chain serves on.
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
		s.old.Wait() // a new address may be one whose old socket is still being closed
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
			s.log.Warn("old configuration did not stop cleanly after a reload; the new one serves", "err", err)
		}
	})
	return nil
}

// finish waits until what is in the socket has been read, for maxFlush at most, and ends the point.
func (p *point) finish() error {
	p.flush()
	return p.end()
}

// each calls f for all points concurrently, and waits until all have returned.
func each(points []*point, f func(*point) error) error {
	errs := make([]error, len(points))
	var wg sync.WaitGroup
	for i, p := range points {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Sockets returns a copy of each listening socket's descriptor, for a process that will serve it too. The caller closes them. If two
// processes read one socket, each query goes to one of them. A socket is closed when both have closed it.
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

// Addresses returns the configured addresses, even if Deaf is set; none if the server is not started.
func (s *Server) Addresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.config.Addresses)
}

// Pause stops reading and accepting until Resume. Queries then wait in the sockets, for another process that reads them. Queries that
// were read are answered, and open connections are served.
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

// Stop answers the queries in progress and, except after Pause, those in the sockets. Then it closes the sockets: UDP after the last
// answer, each TCP connection after its next answer or after a second without a query, and the rest after five to six seconds. The lease
// must be withdrawn before, so that no more queries arrive. If the server is not started, Stop does nothing.
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

// Done returns a channel that is closed when no socket is served any more, because of Stop or because all are dead; nil before Start. With
// Config.Deaf it is never closed. One dead socket among several does not close it; the agent's prober finds that.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.census == nil {
		return nil
	}
	return s.census.done
}
