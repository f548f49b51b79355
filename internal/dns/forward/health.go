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
	// failLimit questions running must go wrong before a server is passed over: one or two are a lost packet or a name's
	// own trouble.
	failLimit = 3
	// soundFor is how long a server that was silent to a client may be silent to a neutral question, too. With silentAfter
	// before it, that is silentEnd: by then the client must be told.
	soundFor = silentEnd - silentAfter
	// A failing server is asked in the background after these times.
	probeFirst = 500 * time.Millisecond
	probeLast  = 5 * time.Second
	// calm is how long a server that came back must be well to be tried as often as at first when it fails again.
	calm = time.Minute
	// rememberEvery is how often a question that was answered well is kept as a neutral one.
	rememberEvery = 10 * time.Second
)

// health is what real answers say of a server, and neutral questions where nobody has an answer.
type health struct {
	fails    atomic.Int32 // running, of real questions
	failing  atomic.Bool
	last     atomic.Int64 // when something was last heard of it, by the server's clock
	well     atomic.Int64 // when it last answered a client's question well, by the same
	changes  atomic.Uint64
	wants    atomic.Bool // a newer question to be tried with
	checking atomic.Bool // by a neutral question

	kept  atomic.Int64            // when good was kept, by the server's clock
	known atomic.Pointer[dns.Msg] // a question that it answered well

	mu        sync.Mutex // guards the fields below
	why       reason
	err       error
	overtaken bool      // it failed by being slower than another
	since     time.Time // of the present state; zero: as at the start
	pause     time.Duration
	term      int      // how often it has begun to fail
	asker     *Ask     // whose question it failed
	probe     *dns.Msg // what it is tried with: the question that it failed, then such as others answer well
	stream    bool     // and how that is asked
	holds     []string
}

// hear notes that something came from the server.
func (s *server) hear(now time.Time) { s.health.last.Store(s.at(now)) }

// good notes an answer that came after took. A server that was passed over for being slow must be quick to come back.
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

// remember keeps a question that was answered well, now and then.
func (s *server) remember(now time.Time, req *dns.Msg) {
	at, kept := s.at(now), s.health.kept.Load()
	if kept == 0 || at-kept > int64(rememberEvery) {
		s.health.kept.Store(at)
		s.health.known.Store(bare(req))
	}
}

// failed is one question that a server did not answer as it should.
type failed struct {
	why       reason
	err       error
	beaten    bool // another server answered it well
	overtaken bool // before this one, that is all
	req       *dns.Msg
	stream    bool
	holds     []string
	asker     *Ask
}

// bad notes a failure. A question that another server answered well is held against this one, and the third running makes it
// one that is asked last. One that nobody answered may be at fault itself (its zone's servers are dead, and any pod can ask
// for names below such a zone): then a neutral question decides.
func (s *server) bad(now time.Time, f failed) {
	if !f.beaten && f.why == reasonSilent {
		s.suspect(f.asker)
		return
	}
	switch n := s.health.fails.Add(1); {
	case n < failLimit && !s.health.failing.Load():
	case f.beaten:
		s.fail(now, f)
	default:
		s.suspect(f.asker)
	}
}

// fail has the server asked last, and begins to try it.
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
	h.since, h.asker = now, f.asker
	if f.req != nil {
		h.probe, h.stream, h.holds = bare(f.req), f.stream, f.holds
	}
	s.log.Warn("upstream fails real questions, it is asked last and tried in the background", "server", s.name, "reason", f.why.String(), "err", f.err)
	h.term++
	term, pause := h.term, h.pause
	s.tasks.Go(func() { s.recover(s.life, term, pause) })
}

// bare is a question without what it says of its asker.
func bare(req *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.Question = append(m.Question, req.Question...)
	m.RecursionDesired = req.RecursionDesired
	return m
}

// suspect has a server that did not answer looked at in the background, unless that is being done.
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

// check asks a neutral question. A server that leaves it unanswered, and all others meanwhile, fails; it is listened to for
// as long as to any question, so one that is slow with everything is known to be alive.
func (s *server) check(life context.Context, a *Ask) {
	began := time.Now()
	silence := time.AfterFunc(soundFor, func() {
		switch now := time.Now(); {
		case now.Sub(began) > soundFor+stalled:
			// We stood still: what came in time may not have been read yet.
		case !s.heard(began):
			s.fail(now, failed{why: reasonSilent, asker: a})
		}
	})
	defer silence.Stop()
	_, _, took, err := s.sound(life, a)
	switch now := time.Now(); {
	case life.Err() != nil, resourceerr.ForQuery(err):
	case err == nil:
		s.good(now, took)
	case !s.heard(began):
		s.fail(now, failed{why: reasonOf(good, err), err: err, asker: a})
	}
}

// sound asks neutral questions: for the servers of the block's zone, and soon after what it has answered well before, over a
// datagram. Any answer will do. The first depends on nobody's zone, so no client can bring it about that it fails; the second
// is for servers that do not speak of zones.
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

// once asks over a new connection.
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

// offer gives a failing server a question to be tried with that another one has answered well. It must not be judged for
// ever by one question, which may be one that it alone refuses with reason, as a validating resolver does.
func (s *server) offer(req *dns.Msg, stream bool, holds []string) {
	if !s.health.wants.CompareAndSwap(true, false) {
		return
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.probe != nil {
		s.health.probe, s.health.stream, s.health.holds = bare(req), stream, holds
	}
}

// recover asks a failing server until it answers, or life ends.
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
		why, overtaken, asker := h.why, h.overtaken, h.asker
		req, stream, holds := h.probe, h.stream, h.holds
		h.mu.Unlock()
		if over {
			return // a client's question found out first
		}
		s.counts.probes.Add(1)
		spoke := !overtaken && why.spoken()
		offered := !h.wants.Swap(true)
		switch {
		case !spoke:
			s.trySound(life, asker)
		case round > 0 && !offered && round%2 == 0:
			// Nobody has answered anything better since: it is not judged by that one question alone.
			s.trySound(life, asker)
		default:
			s.try(life, req, stream, holds)
		}
		pause = min(2*pause, probeLast)
		timer.Reset(pause)
	}
}

// trySound tries a failing server by a neutral question. One that was silent is back with any answer; one that had spoken
// must have a good one.
func (s *server) trySound(life context.Context, a *Ask) {
	_, m, took, err := s.sound(life, a)
	if life.Err() != nil {
		return
	}
	h := &s.health
	h.mu.Lock()
	spoke, holds := h.why.spoken(), h.holds
	if err != nil && !resourceerr.ForQuery(err) && h.failing.Load() {
		h.why, h.err, h.overtaken = reasonOf(good, err), err, false
	}
	h.mu.Unlock()
	if err == nil && !(spoke && judge(m, holds).bad()) {
		s.good(time.Now(), took)
	}
}

// try asks once in the background, over datagrams too where a stream does not come about.
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
