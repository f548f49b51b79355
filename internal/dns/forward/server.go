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
	// defaultMaxAge is how long a stream is used. A connection to a Service stays with the endpoint that it was given at
	// its start; a minute later at most, kube-dns's new pods get their share. Each line draws its own end between half of
	// this and the whole, so that they do not all begin anew at once.
	defaultMaxAge = time.Minute
)

// server is one server that is asked, with its lines and what is known of it. All server blocks that name it, and their
// successors after a reload, share it.
type server struct {
	name    string // as the Corefile has it
	addr    string // address:port
	tls     *tls.Config
	mark    int
	log     *slog.Logger
	bufs    *buffers
	life    context.Context // ends when no server block names it any more
	end     context.CancelFunc
	tasks   sync.WaitGroup // probes
	maxAge  time.Duration
	connect connect
	born    time.Time // what the server's clock counts from

	udp, tcp pool
	streams  streams
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

// at is a moment by the server's clock: nanoseconds since it was made, and never 0. It is the machine's clock that nobody
// sets, so that a wall clock that is set back takes no server for silent, or for talking.
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
	// A spread of ends; what an attacker could learn from it he sees on the wire.
	l.until = time.Now().Add(s.maxAge - rand.N(s.maxAge/2)) //nolint:gosec // see above
	return l, nil
}

// ready gives a line that can be used without waiting: one from the pool, or over datagrams a new one. Nil: dial.
func (s *server) ready(stream bool) (*line, error) {
	if l := s.pool(stream).take(); l != nil {
		return l, nil
	}
	if stream {
		return nil, nil
	}
	return s.open(context.Background(), false)
}

// way is how a server is asked.
type way struct {
	stream    bool         // over TCP or TLS
	fresh     bool         // over a new connection
	connected *atomic.Bool // nil: nobody asks
	told      func(error)  // called when a datagram was rejected, which is listened on for; nil: nobody asks
}

// exchange asks over a line that waits or a new one, and blocks until the answer, deadline or the end of ctx. fresh
// passes the pool by. A line that the server had closed meanwhile is replaced at once, without anybody noticing. connected
// is set once a connection stands.
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
		m, err, stale := s.over(ctx, l, req, wire, deadline, w.told)
		if !stale {
			return m, err
		}
		s.pool(true).flush() // most likely the others are dead too
		w.fresh = true
	}
}

// over asks over l, which it gives back or closes.
//
//nolint:revive,staticcheck // stale qualifies the error
func (s *server) over(ctx context.Context, l *line, req *dns.Msg, wire []byte, deadline time.Time, told func(error)) (m *dns.Msg, err error, stale bool) {
	_ = l.conn.SetDeadline(deadline) // fails on a closed socket only, and then so does the write
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	id, err := l.send(wire)
	if err == nil {
		m, err = l.await(ctx, s.bufs, req, id, deadline, told)
	}
	if !stop() {
		err = errors.Join(err, ctx.Err()) // its deadline may be changed any moment: not to be used again
	}
	if err != nil {
		stale = l.stale(err)
		l.close(s.bufs)
		return nil, err, stale
	}
	s.pool(l.stream).give(l)
	return m, nil, false
}

// close ends everything that the server holds. Lines in use are closed by their users.
func (s *server) close() {
	s.health.mu.Lock() // so that no probe begins after the wait for them
	s.end()
	s.health.mu.Unlock()
	s.udp.close()
	s.tcp.close()
	s.tasks.Wait()
}

// reason puts an error of the network into the few words that stand in logs, status and metrics.
type reason uint8

const (
	reasonNone        reason = iota
	reasonSilent             // no answer in time
	reasonSlow               // another one answered first, although it was asked later
	reasonRefuses            // nothing listens: ECONNREFUSED, or an ICMP rejection
	reasonUnreachable        // no route, a firewall's ICMP
	reasonBroken             // the connection ended before the answer
	reasonMalformed          // not a DNS answer to what was asked
	reasonTLS                // no TLS, or not with this certificate
	reasonServfail
	reasonRefused
	reasonLame
	reasons // how many there are
)

func (r reason) String() string {
	return [...]string{"answered", "silent", "slow", "connection refused", "unreachable", "connection broken", "malformed answer",
		"tls failed", "SERVFAIL", "REFUSED", "answers for another zone"}[r]
}

// spoken reports whether the server has said something, and something wrong.
func (r reason) spoken() bool { return r == reasonServfail || r == reasonRefused || r == reasonLame }

// label is the reason as the value of a metric's label.
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
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM),
		errors.Is(err, os.ErrPermission), errors.As(err, &dnsErr) && dnsErr.Op == "dial":
		return reasonUnreachable
	}
	return reasonBroken
}

// fault is what came of one server for one question, as text.
func fault(s *server, r reason, err error) error {
	if err == nil || r == reasonSilent {
		return fmt.Errorf("%s: %s", s, r)
	}
	return fmt.Errorf("%s: %s: %w", s, r, err)
}
