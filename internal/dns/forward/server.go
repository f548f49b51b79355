package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// defaultMaxAge is how long a stream is used. A connection to a Service stays with the endpoint that it got at its start, so this is
	// when kube-dns's new pods get their share at the latest. Each line draws its own end between half of this and the whole, so that
	// they are not all replaced at once.
	defaultMaxAge = time.Minute
)

// server is one upstream with its connections, health and counters. All server blocks that name it share it, over reloads too.
type server struct {
	name    string // as the Corefile has it
	addr    string // address:port
	tls     *tls.Config
	mark    int
	log     *slog.Logger
	bufs    *buffers
	life    context.Context // ends when no server block names the server
	end     context.CancelFunc
	tasks   sync.WaitGroup // probes
	maxAge  time.Duration
	connect connect
	born    time.Time // the zero of the server's clock

	udp, tcp pool
	health   health
	counts   counts

	refs int // guarded by Servers.mu
}

// String names the server in errors.
func (s *server) String() string { return s.name }

func (s *server) pool(stream bool) *pool {
	if stream {
		return &s.tcp
	}
	return &s.udp
}

// at returns a time by the server's clock: nanoseconds since the server was made, never 0. It uses the monotonic clock, so that setting the
// wall clock makes no server look silent or alive.
func (s *server) at(t time.Time) int64 { return int64(t.Sub(s.born)) + 1 }

// heard reports whether anything came from the server since t.
func (s *server) heard(t time.Time) bool { return s.health.last.Load() >= s.at(t) }

// open makes a new line.
func (s *server) open(ctx context.Context, stream bool) (*line, error) {
	l, err := dial(ctx, s.connect, s.addr, stream, s.tls, s.mark)
	if err != nil {
		return nil, err
	}
	s.counts.opened[index(stream)].Add(1)
	// The ends are spread; an attacker could learn nothing from the random number that the wire does not show.
	l.until = time.Now().Add(s.maxAge - rand.N(s.maxAge/2)) //nolint:gosec // see above
	return l, nil
}

// ready returns a line that can be used without waiting: one from the pool, or a new one for datagrams. If it is nil, the caller must dial.
func (s *server) ready(stream bool) (*line, error) {
	if l := s.pool(stream).take(); l != nil {
		return l, nil
	}
	if stream {
		return nil, nil
	}
	return s.open(context.Background(), false)
}

// way is how a query is sent.
type way struct {
	stream    bool         // over TCP or TLS
	fresh     bool         // over a new connection
	connected *atomic.Bool // set once there is a connection; may be nil
	rejected  func(error)  // called when a datagram was rejected, and the wait goes on; may be nil
}

// exchange sends a query over a pooled or new line, and blocks until the answer, the deadline or the end of ctx. It replaces a pooled line
// that the server had closed, which the caller does not notice.
func (s *server) exchange(ctx context.Context, req *dns.Msg, wire []byte, w way, deadline time.Time) (m *dns.Msg, err error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		var l *line
		if !w.fresh {
			l = s.pool(w.stream).take()
		}
		if l == nil {
			if l, err = s.open(ctx, w.stream); err != nil {
				return nil, err
			}
		}
		if w.connected != nil {
			w.connected.Store(true)
		}
		m, err, stale := s.over(ctx, l, req, wire, deadline, w.rejected)
		if !stale {
			return m, err
		}
		s.pool(true).flush() // the server has probably closed the others too
		w.fresh = true
	}
}

// over sends a query over l, and then returns l to the pool or closes it.
//
//nolint:revive,staticcheck // stale qualifies the error
func (s *server) over(
	ctx context.Context, l *line, req *dns.Msg, wire []byte, deadline time.Time, rejected func(error),
) (m *dns.Msg, err error, stale bool) {
	_ = l.conn.SetDeadline(deadline) // fails on a closed socket only, and then so does the write
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	id, err := l.send(wire)
	if err == nil {
		m, err = l.await(ctx, s.bufs, req, id, deadline, rejected)
	}
	if !stop() {
		err = errors.Join(err, ctx.Err()) // its deadline may change at any moment, so the line must not be reused
	}
	if err != nil {
		stale = l.stale(err)
		l.close(s.bufs)
		return nil, err, stale
	}
	s.pool(l.stream).give(l)
	return m, nil, false
}

// close ends everything that the server holds. Connections in use are closed by the queries that use them.
func (s *server) close() {
	s.health.mu.Lock() // so that no health check begins after the wait for them
	s.end()
	s.health.mu.Unlock()
	s.udp.close()
	s.tcp.close()
	s.tasks.Wait()
}

// reason classifies a failure for logs, status and metrics.
type reason uint8

const (
	reasonNone        reason = iota
	reasonSilent             // no answer in time
	reasonSlow               // another server answered first, although its try began later
	reasonRefuses            // nothing listens: ECONNREFUSED, or an ICMP rejection
	reasonUnreachable        // no route, a firewall's ICMP
	reasonBroken             // the connection ended before the answer
	reasonMalformed          // not a DNS answer to the query
	reasonTLS                // no TLS, or not with this certificate
	reasonServfail
	reasonRefused
	reasonLame
	reasons // the number of reasons
)

func (r reason) String() string {
	return [...]string{"answered", "silent", "slow", "connection refused", "unreachable", "connection broken", "malformed answer",
		"tls failed", "SERVFAIL", "REFUSED", "answers for another zone"}[r]
}

// answered reports whether the server gave an answer, but a bad one.
func (r reason) answered() bool { return r == reasonServfail || r == reasonRefused || r == reasonLame }

// label returns the reason as a metric's label value.
func (r reason) label() string { return strings.ReplaceAll(strings.ToLower(r.String()), " ", "_") }

func reasonOf(v verdict, err error) reason {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var dnsErr *net.OpError
	switch {
	case err == nil && v == servfail:
		return reasonServfail
	case err == nil && v == refused:
		return reasonRefused
	case err == nil && v == lame:
		return reasonLame
	case err == nil:
		return reasonNone
	case errors.As(err, &verify), errors.As(err, &record), errors.As(err, &alert):
		return reasonTLS
	case isTimeout(err), errors.Is(err, context.Canceled):
		return reasonSilent
	case errors.Is(err, syscall.ECONNREFUSED):
		return reasonRefuses
	case errors.Is(err, errForeign), errors.Is(err, errMalformed):
		return reasonMalformed
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EACCES),
		errors.Is(err, syscall.EPERM), errors.Is(err, os.ErrPermission), errors.As(err, &dnsErr) && dnsErr.Op == "dial":
		return reasonUnreachable
	}
	return reasonBroken
}

// fault describes one server's failure for one query.
func fault(s *server, r reason, err error) error {
	if err == nil || r == reasonSilent {
		return fmt.Errorf("%s: %s", s, r)
	}
	return fmt.Errorf("%s: %s: %w", s, r, err)
}
