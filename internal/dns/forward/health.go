package forward

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

const (
	// failLimit queries in a row must fail before a server counts as failing: one or two are a lost packet or the name's own fault.
	failLimit = 3
	// soundFor is how long a server that was silent to a client may be silent to a health check, too. Together with silentAfter it makes
	// silentEnd, when the client must have its answer.
	soundFor = silentEnd - silentAfter
	// The first and the longest pause between health checks of a failing server.
	probeFirst = 500 * time.Millisecond
	probeLast  = 5 * time.Second
	// calm is how long a recovered server must stay healthy before its next failure starts with probeFirst again.
	calm = time.Minute
	// rememberEvery is how often a query that was answered well is kept for health checks.
	rememberEvery = 10 * time.Second
)

// health is a server's state, from answers to clients' queries, and from health checks if no server answered.
type health struct {
	fails    atomic.Int32 // clients' queries that failed in a row
	failing  atomic.Bool
	last     atomic.Int64 // when the server last sent anything, by the server's clock
	well     atomic.Int64 // when it last answered a client's query well, by the same clock
	changes  atomic.Uint64
	wants    atomic.Bool // the health check needs a newer query
	checking atomic.Bool // a health check runs

	kept  atomic.Int64            // when known was stored, by the server's clock
	known atomic.Pointer[dns.Msg] // a query that it answered well

	mu        sync.Mutex // guards the fields below
	why       reason
	err       error
	overtaken bool      // it failed only by being slower than another server
	since     time.Time // start of the present state; zero: since the server was made
	pause     time.Duration
	term      int      // how often it has begun to fail
	block     *Ask     // the server block of the query that failed
	probe     *dns.Msg // the health check's query: the one that failed, later one that another server answered well
	stream    bool     // whether probe goes over a stream
	holds     []string
}

// hear records that the server sent something.
func (s *server) hear(now time.Time) { s.health.last.Store(s.at(now)) }

// good records a good answer that came after took. A server that failed by being slow recovers only with a quick answer.
func (s *server) good(now time.Time, took time.Duration) {
	h := &s.health
	s.hear(now)
	if h.fails.Load() != 0 {
		h.fails.Store(0)
	}
	if !h.failing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing.Load() || h.overtaken && took > hedgeAfter {
		return
	}
	was := now.Sub(h.since)
	h.failing.Store(false)
	h.changes.Add(1)
	h.why, h.err, h.overtaken, h.since, h.probe = reasonNone, nil, false, now, nil
	s.log.Info("upstream answers again", "server", s.name, "after", was.Round(time.Millisecond))
}

// remember stores a query that was answered well for health checks, at most every rememberEvery.
func (s *server) remember(now time.Time, req *dns.Msg) {
	at, kept := s.at(now), s.health.kept.Load()
	if kept == 0 || at-kept > int64(rememberEvery) {
		s.health.kept.Store(at)
		s.health.known.Store(anonymize(req))
	}
}

// failed is one query that a server failed to answer.
type failed struct {
	why       reason
	err       error
	beaten    bool // another server answered it well
	overtaken bool // another server was only faster
	req       *dns.Msg
	stream    bool
	holds     []string
	block     *Ask
}

// bad records a failure. If another server answered the query well, the failure counts against this server, and the third in a row makes
// it failing. If no server answered, the name may be at fault (its zone's servers are dead, and any pod can send queries for names in
// such a zone), so a health check decides.
func (s *server) bad(now time.Time, f failed) {
	if !f.beaten && f.why == reasonSilent {
		s.suspect(f.block)
		return
	}
	switch n := s.health.fails.Add(1); {
	case n < failLimit && !s.health.failing.Load():
	case f.beaten:
		s.fail(now, f)
	default:
		s.suspect(f.block)
	}
}

// fail marks the server as failing, so that it is tried last, and starts its health checks.
func (s *server) fail(now time.Time, f failed) {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.life.Err() != nil {
		return
	}
	known := h.failing.Load()
	h.why, h.err, h.overtaken = f.why, f.err, f.overtaken
	if known {
		return
	}
	if h.pause = min(2*h.pause, probeLast); h.pause == 0 || now.Sub(h.since) > calm {
		h.pause = probeFirst
	}
	h.failing.Store(true)
	h.changes.Add(1)
	h.since, h.block = now, f.block
	if f.req != nil {
		h.probe, h.stream, h.holds = anonymize(f.req), f.stream, f.holds
	}
	s.log.Warn("upstream fails clients' queries; it is tried last until a health check succeeds", "server", s.name, "reason", f.why.String(), "err", f.err)
	h.term++
	term, pause := h.term, h.pause
	s.tasks.Go(func() { s.recover(s.life, term, pause) })
}

// anonymize returns a query without anything about its client.
func anonymize(req *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.Question = append(m.Question, req.Question...)
	m.RecursionDesired = req.RecursionDesired
	return m
}

// suspect starts a health check of a server that did not answer, unless one is running.
func (s *server) suspect(a *Ask) {
	h := &s.health
	if h.failing.Load() || !h.checking.CompareAndSwap(false, true) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.life.Err() != nil {
		return
	}
	s.tasks.Go(func() {
		defer h.checking.Store(false)
		s.check(s.life, a)
	})
}

// check runs a health check. The server fails if it answers neither that nor any other query meanwhile. The check waits as long as for any
// query, so a server that is slow with everything counts as alive.
func (s *server) check(life context.Context, a *Ask) {
	began := time.Now()
	silence := time.AfterFunc(soundFor, func() {
		switch now := time.Now(); {
		case now.Sub(began) > soundFor+stalled:
			// This process was delayed, and may not have read what came in time.
		case !s.heard(began):
			s.fail(now, failed{why: reasonSilent, block: a})
		}
	})
	defer silence.Stop()
	_, _, took, err := s.sound(life, a)
	switch now := time.Now(); {
	case life.Err() != nil, resourceerr.ForQuery(err):
	case err == nil:
		s.good(now, took)
	case !s.heard(began):
		s.fail(now, failed{why: reasonOf(good, err), err: err, block: a})
	}
}

// sound sends the health check's two queries: NS of the block's zone, and shortly after it one that the server answered well before, over a
// datagram. Any answer counts. The first does not depend on clients' names, so no client can make it fail; the second is for servers that
// do not answer NS queries.
func (s *server) sound(life context.Context, a *Ask) (q, m *dns.Msg, took time.Duration, err error) {
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	type result struct {
		q, m *dns.Msg
		took time.Duration
		err  error
	}
	results := make(chan result, 2)
	ask := func(q *dns.Msg, stream bool) {
		began := time.Now()
		m, err := s.once(ctx, q, stream, began.Add(budget))
		results <- result{q, m, time.Since(began), err}
	}
	zone := new(dns.Msg).SetQuestion(a.zones[0], dns.TypeNS)
	second := s.health.known.Load()
	if second == nil {
		second = zone
	}
	stream := s.tls != nil || a.stream && !s.streamless(time.Now())
	go ask(zone, stream) // ends with its answer, its time or ctx
	timer := time.NewTimer(hedgeAfter)
	defer timer.Stop()
	var errs []error
	for left := 2; left > 0; {
		select {
		case r := <-results:
			if now := time.Now(); r.err == nil {
				s.hear(now)
				if len(errs) > 0 && stream && s.tls == nil {
					s.streamFailed(now, errs[0])
				}
				return r.q, r.m, r.took, nil
			}
			left--
			errs = append(errs, r.err)
			if left > 0 {
				timer.Reset(0)
			}
		case <-timer.C:
			if second != nil {
				go ask(second, s.tls != nil) // as above
				second = nil
			}
		}
	}
	return nil, nil, 0, errors.Join(errs...)
}

// once sends a query over a new connection.
func (s *server) once(ctx context.Context, q *dns.Msg, stream bool, deadline time.Time) (*dns.Msg, error) {
	buf, wire, err := s.bufs.pack(q)
	if err != nil {
		return nil, err
	}
	defer s.bufs.put(buf)
	m, err := s.exchange(ctx, q, wire, way{stream: stream, fresh: true}, deadline)
	if err == nil && stream {
		s.streamWorks()
	}
	return m, err
}

// offer gives a failing server's health check a query that another server has answered well. The server must not be judged forever by one
// query, because it may refuse that one with reason, as a validating resolver does.
func (s *server) offer(req *dns.Msg, stream bool, holds []string) {
	if !s.health.wants.CompareAndSwap(true, false) {
		return
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.probe != nil {
		s.health.probe, s.health.stream, s.health.holds = anonymize(req), stream, holds
	}
}

// recover repeats health checks of a failing server until it answers, or life ends.
func (s *server) recover(life context.Context, term int, pause time.Duration) {
	h := &s.health
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for round := 0; h.failing.Load(); round++ {
		select {
		case <-life.Done():
			return
		case <-timer.C:
		}
		h.mu.Lock()
		over := !h.failing.Load() || h.term != term
		why, overtaken, block := h.why, h.overtaken, h.block
		req, stream, holds := h.probe, h.stream, h.holds
		h.mu.Unlock()
		if over {
			return // a client's query was answered first
		}
		s.counts.probes.Add(1)
		answered := !overtaken && why.answered()
		offered := !h.wants.Swap(true)
		switch {
		case !answered:
			s.trySound(life, block)
		case round > 0 && !offered && round%2 == 0:
			// No other server has answered anything better since, so the server is not judged by that one query alone.
			s.trySound(life, block)
		default:
			s.try(life, req, stream, holds)
		}
		pause = min(2*pause, probeLast)
		timer.Reset(pause)
	}
}

// trySound checks a failing server with the queries of sound. A server that was silent recovers with any answer; one that gave bad answers
// needs a good one.
func (s *server) trySound(life context.Context, a *Ask) {
	_, m, took, err := s.sound(life, a)
	if life.Err() != nil {
		return
	}
	h := &s.health
	h.mu.Lock()
	answered, holds := h.why.answered(), h.holds
	if err != nil && !resourceerr.ForQuery(err) && h.failing.Load() {
		h.why, h.err, h.overtaken = reasonOf(good, err), err, false
	}
	h.mu.Unlock()
	if err == nil && !(answered && judge(m, holds).bad()) {
		s.good(time.Now(), took)
	}
}

// try sends one health check query, and repeats it over a datagram if no stream can be made.
func (s *server) try(life context.Context, req *dns.Msg, stream bool, holds []string) {
	began := time.Now()
	stream = s.tls != nil || stream && !s.streamless(began)
	m, err := s.once(life, req, stream, began.Add(silentEnd))
	if err != nil && stream && s.tls == nil && life.Err() == nil {
		began = time.Now()
		m, err = s.once(life, req, false, began.Add(silentEnd))
	}
	if life.Err() != nil {
		return
	}
	v := good
	now := time.Now()
	if err == nil {
		s.hear(now)
		if v = judge(m, holds); !v.bad() {
			s.good(now, now.Sub(began))
			return
		}
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if why := reasonOf(v, err); s.health.failing.Load() && why != reasonNone {
		s.health.why, s.health.err = why, err
	}
}

// dead reports whether the server fails otherwise than by being slower than another.
func (s *server) dead() bool {
	if !s.health.failing.Load() {
		return false
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return !s.health.overtaken
}

// standing is a server's health for the status.
func (s *server) standing() (failing bool, why reason, since time.Time) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.failing.Load(), s.health.why, s.health.since
}
