package ask

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/miekg/dns"
)

var errUnpackable = errors.New("a question that cannot be sent on")

// try is one server asked once for one question.
type try struct {
	server *server
	at     int  // in the list of servers
	stream bool // over TCP or TLS
	again  bool // this server was asked before, by another try
	fresh  bool // over a new connection

	state     state
	why       reason
	err       error
	began     time.Time
	connected bool
}

type state uint8

const (
	planned state = iota
	running
	ended
)

// race is one question on its way. The first try runs in the question's own goroutine until it has taken too long; from then
// on each has one of its own, and whoever answers well first wins.
type race struct {
	a          *Ask
	req        *dns.Msg
	began, end time.Time
	tries      [maxTries]try
	count      int  // tries planned
	spare      bool // some server fails and is not asked first
	next       int  // the first one that has not begun
	best       *dns.Msg
	worth      verdict // of best
	late       bool    // we stood still for a while: what took long says nothing of a server
}

// plan puts the servers in order: healthy ones as they were written, then the last resort, then those that fail; what is left
// of the tries goes to the first ones again.
func (r *race) plan(stream bool) {
	now := r.began
	add := func(s *server, at int, again bool) {
		if r.count < maxTries {
			r.tries[r.count] = try{server: s, at: at, again: again, stream: s.tls != nil || stream && !s.isStreamless(now)}
			r.count++
		}
	}
	a := r.a
	healthy := func(i int) bool { return !a.list[i].health.failing.Load() && !a.loops[i].Load() }
	failing := func(i int) bool { return a.list[i].health.failing.Load() && !a.loops[i].Load() }
	reserve := 0 // the last resort's place
	for i := a.first; i < len(a.list); i++ {
		if healthy(i) {
			reserve = 1
		}
	}
	for i := range a.first {
		if healthy(i) && r.count < maxTries-reserve {
			add(a.list[i], i, false)
		}
	}
	for i := a.first; i < len(a.list); i++ {
		if healthy(i) {
			add(a.list[i], i, false)
		}
	}
	for i := range a.list {
		if failing(i) {
			r.spare = true
			add(a.list[i], i, false)
		}
	}
	servers := r.count
	for range 2 { // a third way for a single server
		for i := range servers {
			add(r.tries[i].server, r.tries[i].at, true)
		}
		if servers > 1 {
			break
		}
	}
}

// dead reports whether every server planned is known to be dead.
func (r *race) dead() bool {
	for i := range r.count {
		if !r.tries[i].server.dead() {
			return false
		}
	}
	return true
}

// run asks until somebody answers well, everybody has failed or the time is over.
func (r *race) run(ctx context.Context) (*dns.Msg, error) {
	buf, wire, err := r.a.servers.bufs.pack(r.req)
	if err != nil {
		return nil, errors.Join(errUnpackable, err)
	}
	r.a.servers.hedges.earn()
	pending, m := r.begin(wire)
	if m == nil {
		wire = slices.Clone(wire) // it may take a while, and many may wait: hold no more than needed
	}
	r.a.servers.bufs.put(buf)
	if m != nil {
		return m, nil
	}
	return r.contend(ctx, wire, pending)
}

// outcome is what came of a try.
type outcome struct {
	try       int
	msg       *dns.Msg
	err       error
	connected bool
}

// listening is the first try where it has taken too long.
type listening struct {
	line *line
	id   uint16
}

// begin makes the first try as far as it needs no goroutine. It returns an answer, or the line that is still waited for, or
// neither: then the try has failed, or not begun because a connection must be made.
func (r *race) begin(wire []byte) (*listening, *dns.Msg) {
	t := &r.tries[0]
	s := t.server
	l, err := s.ready(t.stream)
	if l == nil && err == nil {
		return nil, nil
	}
	t.state, t.began, t.connected, r.next = running, r.began, true, 1
	if err != nil {
		r.take(outcome{err: err})
		return nil, nil
	}
	until := r.began.Add(hedgeAfter)
	if r.end.Before(until) {
		until = r.end
	}
	_ = l.conn.SetDeadline(until) // see over
	id, err := l.send(wire)
	sent := err == nil
	var m *dns.Msg
	if sent {
		m, err = l.receive(s.bufs, r.req, id)
	}
	switch {
	case err == nil:
		s.pool(l.stream).give(l)
		if r.take(outcome{msg: m, connected: true}) {
			return nil, r.best
		}
	case sent && isTimeout(err):
		return &listening{l, id}, nil
	case l.stale(err):
		l.close(s.bufs)
		s.pool(true).flush() // most likely the others are dead too
		t.state, t.fresh, r.next = planned, true, 0
	default:
		l.close(s.bufs)
		r.take(outcome{err: err, connected: true})
	}
	return nil, nil
}

// contend goes on with the other tries, each in a goroutine, until one answers well.
func (r *race) contend(ctx context.Context, wire []byte, pending *listening) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the losers
	outcomes := make(chan outcome, maxTries)
	req := r.req.Copy() // the caller's own changes when we have returned, before the losers notice
	active := 0
	start := func() {
		i := r.next
		r.next++
		active++
		r.ready(i)
		t := r.tries[i]
		own := slices.Clone(wire)
		go func() { // ends with its answer, at r.end or with ctx
			m, connected, err := t.server.exchange(ctx, req, own, t.stream, t.fresh, r.end)
			outcomes <- outcome{i, m, err, connected}
		}()
	}
	pause := hedgeAfter
	switch {
	case pending != nil:
		r.due(r.began.Add(hedgeAfter))
		active++
		pause = hedgeAgain
		s := r.tries[0].server
		go func() { // as above
			m, err := s.listen(ctx, pending, req, r.end)
			outcomes <- outcome{0, m, err, true}
		}()
		if r.more() && r.mayHedge() {
			start()
			pause = hedgeAfter
		}
	case r.next == 0, r.more() && r.atOnce(0):
		start()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	due := time.Now().Add(pause)
	wait := func(d time.Duration) { timer.Reset(d); due = time.Now().Add(d) }
	for active > 0 || r.more() && time.Now().Before(r.end) {
		select {
		case out := <-outcomes:
			active--
			if r.take(out) {
				r.settle(out.try)
				return r.best, nil
			}
			if r.more() && r.atOnce(out.try) {
				start()
				wait(hedgeAfter)
			}
		case <-timer.C:
			r.due(due)
			pause = hedgeAgain
			if r.more() && (active == 0 || r.mayHedge()) {
				start()
				pause = hedgeAfter
			}
			wait(pause)
		case <-ctx.Done():
			r.settle(-1)
			return r.give(ctx.Err())
		}
	}
	r.settle(-1)
	return r.give(nil)
}

// due notes how late we are for something.
func (r *race) due(at time.Time) { r.late = r.late || time.Since(at) > stalled }

// listen waits on for the answer on a line.
func (s *server) listen(ctx context.Context, p *listening, req *dns.Msg, end time.Time) (*dns.Msg, error) {
	_ = p.line.conn.SetDeadline(end) // see over
	stop := context.AfterFunc(ctx, func() { _ = p.line.conn.SetDeadline(time.Unix(1, 0)) })
	m, err := p.line.receive(s.bufs, req, p.id)
	if !stop() || err != nil {
		p.line.close(s.bufs)
		return m, errors.Join(err, ctx.Err())
	}
	s.pool(p.line.stream).give(p.line)
	return m, nil
}

// ready settles how a try is made that asks a server again: not over the connection that did not answer, and at last by
// the other protocol.
func (r *race) ready(i int) {
	t := &r.tries[i]
	t.state, t.began = running, time.Now()
	if !t.again {
		return
	}
	t.fresh = true
	for j := i - 1; j >= 0; j-- {
		before := &r.tries[j]
		if before.server != t.server {
			continue
		}
		switch {
		case t.server.tls != nil:
		case before.state == ended && before.err == nil && r.worth == truncated:
			t.stream, t.fresh = true, false
		case before.stream && (before.fresh || !before.connected):
			t.stream = false
		case !before.stream && before.again:
			t.stream = !t.server.isStreamless(t.began)
		default:
			t.stream = before.stream
		}
		return
	}
}

// more reports whether a try is left. A server that has spoken is not asked again: it would not change its mind.
func (r *race) more() bool {
	for r.next < r.count && r.tries[r.next].again && r.spoken(r.tries[r.next].server) {
		r.next++
	}
	return r.next < r.count
}

func (r *race) spoken(s *server) bool {
	for i := range r.next {
		if t := &r.tries[i]; t.server == s && t.state == ended && t.err == nil && t.why != reasonNone {
			return true
		}
	}
	return false
}

// atOnce reports whether the next try need not wait for its time after try i has failed: another server, or the same one
// by another way.
func (r *race) atOnce(i int) bool {
	t, next := &r.tries[i], &r.tries[r.next]
	switch {
	case next.server != t.server:
		return true
	case t.err == nil, t.why == reasonBroken:
		return true // truncated, or the end of this connection only
	}
	return t.stream && t.server.tls == nil && !t.connected
}

// mayHedge reports whether another try may run beside those that run: always where they wait for a server known to fail,
// else within the share that keeps a slow upstream from being asked everything twice.
func (r *race) mayHedge() bool {
	for i := range r.next {
		if t := &r.tries[i]; t.state == running && t.server.health.failing.Load() {
			return true
		}
	}
	return r.a.servers.hedges.spend()
}

// take notes an outcome and reports whether it is the answer.
func (r *race) take(out outcome) bool {
	t := &r.tries[out.try]
	t.state, t.err, t.connected = ended, out.err, out.connected
	now := time.Now()
	v := good
	if out.err == nil {
		v = judge(out.msg, r.a.holds)
		t.server.observe(out.msg.Rcode, now.Sub(t.began))
	}
	t.why = reasonOf(v, out.err)
	t.server.counts.results[t.why].Add(1)
	if out.err != nil {
		if r.best == nil || r.worth != truncated || !t.stream || out.connected || t.server.tls != nil {
			return false
		}
		t.server.setStreamless(now, out.err)
		return true // the head of the answer is all that there is
	}
	if r.best == nil || rank(v) < rank(r.worth) {
		r.best, r.worth = out.msg, v
	}
	if v == truncated && (t.stream || t.server.isStreamless(now)) {
		v = good // that is all that there is
	}
	if v != good {
		t.server.health.heard.Store(now.UnixNano())
		if v == truncated {
			r.wholeNext(t)
		}
		return false
	}
	t.server.good(now, now.Sub(t.began))
	if r.spare {
		for _, s := range r.a.list {
			if s != t.server && s.health.failing.Load() {
				s.offer(r.req, r.a.stream, r.a.holds)
			}
		}
	}
	if t.at >= r.a.first {
		r.a.resorted.Add(1)
	}
	return true
}

// wholeNext has the server that answered with the head of an answer asked next, over a stream.
func (r *race) wholeNext(t *try) {
	if r.next == maxTries {
		return
	}
	if r.count < maxTries {
		r.count++
	}
	copy(r.tries[r.next+1:r.count], r.tries[r.next:r.count-1])
	r.tries[r.next] = try{server: t.server, at: t.at, again: true, stream: true}
}

// rank says which of two answers that are no good goes to the client when there is no other. A denial from elsewhere is
// what the client would have got without us.
func rank(v verdict) int {
	return [...]int{good: 0, truncated: 1, lame: 2, servfail: 3, refused: 4}[v]
}

// give ends a race that nobody has won: with the best of the bad answers, or everybody's reason.
func (r *race) give(err error) (*dns.Msg, error) {
	if r.best != nil {
		return r.best, nil
	}
	errs := []error{err}
	for i := range r.next {
		t := &r.tries[i]
		switch t.state {
		case planned:
			continue
		case running:
			t.why = reasonSilent
		}
		errs = append(errs, fault(t.server, t.why, t.err))
	}
	return nil, errors.Join(errs...)
}
