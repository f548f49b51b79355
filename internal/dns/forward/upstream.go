package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	// defaultMaxAge is the maximum age of a connection. A connection to a Service stays with the endpoint to which it was opened, so new
	// pods of kube-dns get their share after this time at the latest. Each connection ends at a random time between half of it and the
	// whole, so that not all are replaced at once.
	defaultMaxAge = time.Minute
)

// server is one upstream with its connections, health and counters. All server blocks that list it share it, also across a reload.
type server struct {
	of    *Servers
	name  string // nameserver.Address.String
	addr  string // address:port
	tls   *tls.Config
	mark  atomic.Int64    // of packets to the server, see prepare; 0: none. It stays: a mark that no rule of the host needs does no harm.
	life  context.Context // canceled when no server block lists the server any more
	end   context.CancelFunc
	tasks sync.WaitGroup // goroutines that send health checks

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

// at returns t on the server's clock: in nanoseconds since Servers was made, never 0. It is a monotonic clock, so setting the wall clock
// makes no server look silent or alive.
func (s *server) at(t time.Time) int64 { return int64(t.Sub(s.of.born)) + 1 }

// heard reports whether the server has answered a client's query or a health check since t.
func (s *server) heard(t time.Time) bool { return s.health.last.Load() >= s.at(t) }

// open opens a UDP socket, or a TCP or TLS connection, to the server.
func (s *server) open(ctx context.Context, stream bool) (*line, error) {
	l, err := dial(ctx, s.of.connect, s.addr, stream, s.tls, int(s.mark.Load()))
	if err != nil {
		return nil, err
	}
	s.counts.opened[index(stream)].Add(1)
	// The ends are spread at random. The random number need not be secret, because each connection's end can be seen on the network.
	l.until = time.Now().Add(s.of.maxAge - rand.N(s.of.maxAge/2)) //nolint:gosec // see above
	return l, nil
}

// ready returns a line that can be used at once: from the pool, or a new UDP socket. It returns nil if a TCP connection must be made.
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
	connected *atomic.Bool // set as soon as there is a connection; may be nil
}

// exchange sends a query over a pooled or a new connection, and waits for the answer, the deadline or the end of ctx. If the server had
// closed the pooled connection, it sends the query again over a new one.
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
		m, err, stale := s.over(ctx, l, req, wire, deadline)
		if !stale {
			return m, err
		}
		s.pool(true).flush() // the server has probably closed its other idle connections too
		w.fresh = true
	}
}

// over sends a query over l and waits for the answer. Then it returns l to the pool, or closes it.
//
//nolint:revive,staticcheck // stale qualifies the error
func (s *server) over(ctx context.Context, l *line, req *dns.Msg, wire []byte, deadline time.Time) (m *dns.Msg, err error, stale bool) {
	_ = l.conn.SetDeadline(deadline) // fails only if the socket is closed, and then sending fails too
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	id, err := l.send(wire)
	if err == nil {
		m, err = l.await(ctx, &s.of.bufs, req, id, deadline)
	}
	if !stop() {
		err = errors.Join(err, ctx.Err()) // the end of ctx changes the deadline at any moment, so the connection must not be reused
	}
	if err != nil {
		stale = l.stale(err)
		l.close(&s.of.bufs)
		return nil, err, stale
	}
	s.pool(l.stream).give(l)
	return m, nil, false
}

// close ends the health checks and closes the pooled connections. Queries in flight close theirs when they end.
func (s *server) close() {
	s.health.mu.Lock() // so that no health check begins after tasks.Wait
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
	reasonSlow               // no answer before another server's, or only to other queries
	reasonRefuses            // ECONNREFUSED: nothing listens, so a TCP reset or an ICMP "port unreachable" came
	reasonUnreachable        // no route, an ICMP error of a firewall, or another failure to connect
	reasonBroken             // the connection ended before the answer, or another error
	reasonMalformed          // not a DNS answer to the query
	reasonTLS                // the server has no TLS or another certificate
	reasonServfail
	reasonRefused
	reasonLame
	reasons // the number of reasons
)

func (r reason) String() string {
	return [...]string{"answered", "silent", "slow", "connection refused", "unreachable", "connection broken", "malformed answer",
		"tls failed", "SERVFAIL", "REFUSED", "answers for another zone"}[r]
}

// answered reports whether the server gave an answer, although a bad one.
func (r reason) answered() bool { return r == reasonServfail || r == reasonRefused || r == reasonLame }

// label returns the reason as a metric's label value.
func (r reason) label() string { return strings.ReplaceAll(strings.ToLower(r.String()), " ", "_") }

func reasonOf(v verdict, err error) reason {
	var verify *tls.CertificateVerificationError
	var record tls.RecordHeaderError
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
	case errors.As(err, &verify), errors.As(err, &record), errors.As(err, &dnsErr) && dnsErr.Op == "remote error": // a TLS alert
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

// fault returns an error that describes how a server failed a query.
func fault(s *server, r reason, err error) error {
	if err == nil || r == reasonSilent {
		return fmt.Errorf("%s: %s", s, r)
	}
	return fmt.Errorf("%s: %s: %w", s, r, err)
}
