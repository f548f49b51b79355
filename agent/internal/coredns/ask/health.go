package ask

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// failLimit questions running must go wrong before a server is passed over: one or two are a lost packet or a name's
	// own trouble.
	failLimit = 3
	// A failing server is asked in the background, with the question that it failed last, after these times.
	probeFirst = 500 * time.Millisecond
	probeLast  = 5 * time.Second
)

// health is what real answers say of a server.
type health struct {
	fails   atomic.Int32 // running, of real questions
	failing atomic.Bool
	heard   atomic.Int64 // Unix time in nanoseconds of the last answer
	changes atomic.Uint64
	wants   atomic.Bool // a newer question to be tried with

	mu        sync.Mutex // guards the fields below
	why       reason
	err       error
	overtaken bool      // it failed by being slower than another
	since     time.Time // of the present state; zero: as at the start
	probe     *dns.Msg  // what it is tried with: the question that it failed, then such as others answer well
	stream    bool      // and how that is asked
	holds     []string
}

// good notes an answer that came after took. A server that was passed over for being slow must be quick to come back.
func (s *server) good(now time.Time, took time.Duration) {
	h := &s.health
	h.heard.Store(now.UnixNano())
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

// failed is one question that a server did not answer as it should.
type failed struct {
	why       reason
	err       error
	overtaken bool
	req       *dns.Msg
	stream    bool
	holds     []string
}

// bad notes a failure. The third running makes the server one that is asked last, and starts its probes.
func (s *server) bad(now time.Time, f failed) {
	h := &s.health
	n := h.fails.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.life.Err() != nil || n < failLimit && !h.failing.Load() {
		return
	}
	if h.failing.Load() {
		h.why, h.err, h.overtaken = f.why, f.err, f.overtaken
		return
	}
	h.failing.Store(true)
	h.changes.Add(1)
	h.why, h.err, h.overtaken, h.since = f.why, f.err, f.overtaken, now
	h.probe, h.stream, h.holds = bare(f.req), f.stream, f.holds
	s.log.Warn("upstream fails real questions, it is asked last and tried in the background", "server", s.name, "reason", f.why.String(), "err", f.err)
	s.tasks.Go(func() { s.recover(s.life) })
}

// bare is a question without what it says of its asker.
func bare(req *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.Question = append(m.Question, req.Question...)
	m.RecursionDesired = req.RecursionDesired
	return m
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
func (s *server) recover(life context.Context) {
	pause := probeFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for s.health.failing.Load() {
		select {
		case <-life.Done():
			return
		case <-timer.C:
		}
		s.health.mu.Lock()
		req, stream, holds := s.health.probe, s.health.stream, s.health.holds
		s.health.mu.Unlock()
		if req == nil {
			return // a client's question found out first
		}
		s.try(life, req, stream, holds)
		s.health.wants.Store(true)
		pause = min(2*pause, probeLast)
		timer.Reset(pause)
	}
}

// try asks once in the background, over datagrams too where a stream does not come about.
func (s *server) try(life context.Context, req *dns.Msg, stream bool, holds []string) {
	buf, wire, err := s.bufs.pack(req)
	if err != nil {
		return // it was packed before
	}
	defer s.bufs.put(buf)
	stream = stream && !s.isStreamless(time.Now()) || s.tls != nil
	began := time.Now()
	m, _, err := s.exchange(life, req, wire, stream, true, began.Add(budget))
	v := good
	if err == nil {
		v = judge(m, holds)
	} else if stream && s.tls == nil && life.Err() == nil {
		over := err
		began = time.Now()
		if m, _, err = s.exchange(life, req, wire, false, true, began.Add(budget)); err == nil {
			if v = judge(m, holds); !v.bad() {
				s.setStreamless(time.Now(), over)
			}
		}
	}
	if life.Err() != nil {
		return
	}
	s.counts.probes.Add(1)
	now := time.Now()
	if err == nil && !v.bad() {
		s.good(now, now.Sub(began))
		return
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
