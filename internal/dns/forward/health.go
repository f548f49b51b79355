package forward

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/resourceerr"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// failLimit is the number of clients' queries in a row that a server must fail before bad marks it as failing. One or two may be lost
	// packets, or names that no server can resolve.
	failLimit = 3
	// soundFor is how long a server may send nothing after a health check begins, before it counts as failing. A check that
	// hedgedQuery.suspect starts begins about silentAfter after a client's query, so it is decided about when silentEnd ends that query.
	soundFor = silentEnd - silentAfter
	// The first and the longest pause between attempts to use a failing server. Each pause is up to twice as long as the one before.
	probeFirst = 500 * time.Millisecond
	probeLast  = 5 * time.Second
	// calm is how long a recovered server must be healthy, so that the pauses start with probeFirst again if it fails later.
	calm = time.Minute
	// If TCP fails streamFails times in a row for queries that the server then answers over UDP, UDP is tried first for datagramsFor. After
	// that, one query tries TCP and has streamTurn to succeed. Meanwhile the others still use UDP, because they would have to wait if TCP
	// packets are still dropped. This does not make the server failing.
	streamFails  = 3
	datagramsFor = 10 * time.Second
	streamTurn   = time.Second
)

// health is a server's state. It follows from answers to clients' queries and from health checks.
type health struct {
	fails   atomic.Int32 // clients' queries that failed in a row, as bad counts them
	failing atomic.Bool
	last    atomic.Int64 // when the server last answered a client's query or a health check, on the server's clock (see at)
	well    atomic.Int64 // when it last gave a good answer to a client's query, on the same clock
	turn    atomic.Int64 // when the next client's query may try this failing server in its configured place; 0: none may
	changes atomic.Uint64

	streamFails    atomic.Int32 // streams that failed in a row
	datagramsUntil atomic.Int64 // UDP is tried before TCP until then, on the server's clock; 0: it is not

	mu       sync.Mutex // guards the fields below
	why      reason
	slow     bool          // the server is failing because another was faster; a slow answer to a health check does not end that
	since    time.Time     // start of the present state; zero: the state has never changed
	pause    time.Duration // before the next attempt while it fails
	checking bool          // a goroutine sends health checks
}

// hear records that the server answered a client's query or a health check, well or not.
func (s *server) hear(now time.Time) { s.health.last.Store(s.at(now)) }

// good records a good answer to a client's query that was sent at began. It ends a failing state (see recover).
func (s *server) good(began, now time.Time) {
	s.hear(now)
	s.health.well.Store(s.at(now))
	if s.health.fails.Load() != 0 {
		s.health.fails.Store(0)
	}
	if s.health.failing.Load() {
		s.recover(began, now)
	}
}

// recover ends a server's failing state, unless bad answers are its reason and it began after the query whose good answer came at now: a
// server that is overloaded gives good and bad answers by turns.
func (s *server) recover(began, now time.Time) {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing.Load() || h.turn.Load() != 0 && !began.After(h.since) {
		return
	}
	was := now.Sub(h.since)
	h.fails.Store(0)
	h.failing.Store(false)
	h.turn.Store(0)
	h.changes.Add(1)
	h.why, h.slow, h.since = reasonNone, false, now
	s.of.log.Info("upstream answers well again; it is tried in its turn", "server", s.name, "failed_for", was.Round(time.Millisecond))
}

// failed describes how a server failed a client's query.
type failed struct {
	why    reason
	err    error
	beaten bool // another server answered it well
	slow   bool // another server answered first, and this one had not failed
}

// bad records that a server failed a client's query. If another server answered the query well, the third failure in a row makes this
// server failing. Otherwise the name may be the cause (its authoritative servers are dead, and any pod can query such names), so only a
// health check can make the server failing; silence is then not counted as a failure.
func (s *server) bad(now time.Time, a *Block, f failed) {
	if !f.beaten && f.why == reasonSilent {
		s.suspect(a)
		return
	}
	switch n := s.health.fails.Add(1); {
	case n < failLimit && !s.health.failing.Load():
	case f.beaten:
		s.fail(now, a, f)
	default:
		s.suspect(a)
	}
}

// fail marks the server as failing, so that it is tried last. If it gives bad answers, for example SERVFAIL, one client's query after
// each pause tries it in its configured place, unless it is a last resort. That costs the client almost nothing, because the next server
// is tried as soon as the bad answer comes. A server that failed in another way is tried by health checks.
func (s *server) fail(now time.Time, a *Block, f failed) {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why, h.slow = f.why, f.slow
	if !h.failing.Swap(true) {
		if h.pause == 0 || now.Sub(h.since) > calm {
			h.pause = probeFirst
		}
		h.changes.Add(1)
		h.since = now
		s.of.log.Warn("upstream failed clients' queries; until it recovers, it is tried last, apart from a single query now and then",
			"server", s.name, "reason", f.why.String(), "err", f.err)
	}
	if f.why.answered() {
		h.turn.Store(s.at(now.Add(h.nextPause())))
		return
	}
	h.turn.Store(0)
	s.startChecks(a)
}

// nextPause returns the pause before the next attempt to use a failing server, and doubles it for the next time, up to probeLast. The
// caller holds mu.
func (h *health) nextPause() time.Duration {
	d := h.pause
	h.pause = min(2*d, probeLast)
	return d
}

// takeTurn reports whether a query should try a failing server in its configured place. After each pause it returns true once.
func (s *server) takeTurn(now time.Time) bool {
	h := &s.health
	turn := h.turn.Load()
	if turn == 0 || s.at(now) < turn {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.turn.CompareAndSwap(turn, s.at(now.Add(h.nextPause()))) {
		return false
	}
	s.counts.probes.Add(1)
	return true
}

// suspect starts health checks of the server, unless they run already (see startChecks).
func (s *server) suspect(a *Block) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.startChecks(a)
}

// startChecks starts a goroutine, unless one runs, that sends health checks until the server is healthy, until clients' queries try it (see
// fail), or until the server is closed. The caller holds mu.
func (s *server) startChecks(a *Block) {
	h := &s.health
	if h.checking || s.life.Err() != nil {
		return
	}
	h.checking = true
	s.tasks.Go(func() {
		if !h.failing.Load() {
			s.check(a)
		}
		for {
			h.mu.Lock()
			if !h.failing.Load() || h.turn.Load() != 0 || s.life.Err() != nil {
				h.checking = false
				h.mu.Unlock()
				return
			}
			pause := h.nextPause()
			h.mu.Unlock()
			if tick.Pause(s.life, pause) && h.failing.Load() && h.turn.Load() == 0 {
				s.counts.probes.Add(1)
				s.check(a)
			}
		}
	})
}

// check runs a health check. If the server sends nothing within soundFor, to any query, it is marked as failing, and also if the check
// fails without any answer. The check itself waits as long as a client's query: an answer after soundFor makes the server healthy again.
func (s *server) check(a *Block) {
	began := time.Now()
	silence := time.AfterFunc(soundFor, func() {
		switch now := time.Now(); {
		case now.Sub(began) > soundFor+stalled:
			// This process was delayed, so it may not have read an answer that came in time.
		case !s.heard(began):
			s.fail(now, a, failed{why: reasonSilent})
		}
	})
	defer silence.Stop()
	took, err := s.sound(a)
	now := time.Now()
	switch {
	case s.life.Err() != nil, resourceerr.ForQuery(err):
	case err == nil:
		s.hear(now)
		s.health.mu.Lock()
		enough := s.health.turn.Load() == 0 && (!s.health.slow || took <= hedgeAfter)
		s.health.mu.Unlock()
		if enough {
			s.recover(began, now)
		}
	case !s.heard(began):
		s.fail(now, a, failed{why: reasonOf(good, err), err: err})
	}
}

// sound sends the query of a health check, for the NS records of the block's first zone, and returns how long the answer took. Any answer
// counts as success. Clients do not choose the name, so none can make the check fail. If TCP fails, the query is repeated over UDP.
func (s *server) sound(a *Block) (took time.Duration, err error) {
	zone := new(dns.Msg).SetQuestion(a.zones[0], dns.TypeNS)
	began := time.Now()
	stream := s.tls != nil || a.stream && !s.prefersDatagrams(began)
	if _, err = s.once(s.life, zone, stream, began.Add(budget)); err == nil && stream {
		s.streamWorks()
	}
	if err == nil || !stream || s.tls != nil {
		return time.Since(began), err
	}
	began = time.Now()
	_, second := s.once(s.life, zone, false, began.Add(budget))
	if second == nil {
		s.streamFailed(began, err)
		return time.Since(began), nil
	}
	return 0, errors.Join(err, second)
}

// once sends a query over a new connection, not over a pooled one.
func (s *server) once(ctx context.Context, q *dns.Msg, stream bool, deadline time.Time) (*dns.Msg, error) {
	buf, wire, err := s.of.bufs.pack(q)
	if err != nil {
		return nil, err
	}
	defer s.of.bufs.put(buf)
	return s.exchange(ctx, q, wire, way{stream: stream, fresh: true}, deadline)
}

// prefersDatagrams reports whether UDP is tried before TCP, because TCP has failed.
func (s *server) prefersDatagrams(now time.Time) bool {
	return s.tls == nil && s.health.datagramsUntil.Load() > s.at(now)
}

// streamFirst reports whether a query should use TCP or TLS first. If TCP has failed lately, it returns true to one query after
// datagramsFor.
func (s *server) streamFirst(now time.Time) bool {
	until, at := s.health.datagramsUntil.Load(), s.at(now)
	return s.tls != nil || until == 0 || at >= until && s.health.datagramsUntil.CompareAndSwap(until, at+int64(streamTurn))
}

// streamFailed records a query that the server answered over UDP, after it had failed over TCP.
func (s *server) streamFailed(now time.Time, why error) {
	if s.health.streamFails.Add(1) < streamFails {
		return
	}
	if was := s.health.datagramsUntil.Swap(s.at(now.Add(datagramsFor))); was == 0 {
		s.of.log.Info("upstream fails with TCP, not with UDP; UDP is tried first, TCP again after each pause", "server", s.name, "err", why,
			"pause", datagramsFor)
	}
}

// streamWorks records an answer over a stream.
func (s *server) streamWorks() {
	if s.health.streamFails.Load() != 0 {
		s.health.streamFails.Store(0)
	}
	if s.health.datagramsUntil.Load() != 0 && s.health.datagramsUntil.Swap(0) != 0 {
		s.of.log.Info("upstream answers over TCP again; UDP is no longer tried first", "server", s.name)
	}
}
