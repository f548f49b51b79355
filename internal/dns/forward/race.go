package forward

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
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
	worth     verdict // of its answer
	err       error
	began     time.Time
	connected *atomic.Bool // a connection stood; nil: it did from the start
	told      error        // it runs, and the network has said that it is in vain
}

// stood reports whether the try had a connection.
func (t *try) stood() bool { return t.connected == nil || t.connected.Load() }

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
	patience   time.Time // when it ends if nothing was heard of a server
	overTCP    bool      // the client asked over a stream: it cannot come again by another way
	trial      bool      // every server was dead when it began
	suspected  bool      // those that are silent are being looked at
	tries      [maxTries]try
	count      int  // tries planned
	spare      bool // some server fails and is not asked first
	next       int  // the first one that has not begun
	best       *dns.Msg
	worth      verdict   // of best
	headed     time.Time // since when best is the head of an answer
	late       bool      // we stood still for a while: what took long says nothing of a server
}

// plan puts the servers in order: healthy ones as they were written, then the last resort, then those that fail; what is left
// of the tries goes to the first ones again.
func (r *race) plan(stream bool) {
	now := r.began
	add := func(s *server, at int, again bool) {
		if r.count < maxTries {
			r.tries[r.count] = try{server: s, at: at, again: again, stream: s.tls != nil || stream && s.streamFirst(now)}
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
	t.state, t.began, r.next = running, r.began, 1
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
		if r.take(outcome{msg: m}) {
			return nil, r.best
		}
	case sent && (isTimeout(err) || l.told != nil):
		t.told = l.told
		return &listening{l, id}, nil
	case l.stale(err):
		l.close(s.bufs)
		s.pool(true).flush() // most likely the others are dead too
		t.state, t.fresh, r.next = planned, true, 0
	default:
		l.close(s.bufs)
		r.take(outcome{err: err})
	}
	return nil, nil
}

// contend goes on with the other tries, each in a goroutine, until one answers well.
func (r *race) contend(ctx context.Context, wire []byte, pending *listening) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the losers
	outcomes := make(chan outcome, 2*maxTries)
	req := r.req.Copy() // the caller's own changes when we have returned, before the losers notice
	active := 0
	start := func() {
		i := r.next
		r.next++
		active++
		r.ready(i)
		t, end := r.tries[i], r.end
		own := slices.Clone(wire)
		go func() { // ends with its answer, at r.end or with ctx
			told := func(err error) { outcomes <- outcome{try: i, err: err, told: true} }
			m, err := t.server.exchange(ctx, req, own, way{t.stream, t.fresh, t.connected, told}, end)
			outcomes <- outcome{try: i, msg: m, err: err}
		}()
	}
	pause := hedgeAfter
	switch {
	case pending != nil:
		r.a.servers.NoteTrouble()
		r.due(r.began.Add(hedgeAfter))
		active++
		pause = hedgeAgain
		s, end := r.tries[0].server, r.end
		go func() { // as above
			told := func(err error) { outcomes <- outcome{err: err, told: true} }
			m, err := s.listen(ctx, pending, req, end, told)
			outcomes <- outcome{try: 0, msg: m, err: err}
		}()
		switch told := r.tries[0].told != nil; {
		case r.more() && (told && r.elsewhere(0) || !told && r.mayHedge()):
			start()
			pause = hedgeAfter
		case told:
			pause = hedgeAfter
		}
	case r.next == 0, r.more() && r.atOnce(0):
		start()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	due := time.Now().Add(pause)
	wait := func(d time.Duration) {
		now := time.Now()
		if left := r.patience.Sub(now); left > 0 {
			d = min(d, left)
		}
		timer.Reset(d)
		due = now.Add(d)
	}
	for active > 0 || r.more() && time.Now().Before(r.end) {
		select {
		case out := <-outcomes:
			if out.told {
				r.tries[out.try].told = out.err
				if r.more() && r.elsewhere(out.try) {
					start()
					wait(hedgeAfter)
				}
				continue
			}
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
			r.a.servers.NoteTrouble()
			r.due(due)
			now := time.Now()
			r.suspect(now)
			if r.hopeless(now) {
				r.settle(-1)
				return r.give(nil)
			}
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
func (s *server) listen(ctx context.Context, p *listening, req *dns.Msg, end time.Time, told func(error)) (*dns.Msg, error) {
	_ = p.line.conn.SetDeadline(end) // see over
	if p.line.told != nil {
		p.line.listenOn(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.line.conn.SetDeadline(time.Unix(1, 0)) })
	m, err := p.line.await(ctx, s.bufs, req, p.id, end, told)
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
	t.state, t.began, t.connected = running, time.Now(), new(atomic.Bool)
	if !t.again {
		return
	}
	t.fresh = true
	if r.cut() && t.server.tls == nil { // a datagram has shown what it can hold
		t.stream = true
		return
	}
	for j := i - 1; j >= 0; j-- {
		before := &r.tries[j]
		if before.server != t.server {
			continue
		}
		switch {
		case t.server.tls != nil:
		case before.stream && (before.fresh || before.connected != nil): // no connection was at hand, and a new one did no better
			t.stream = false
		case !before.stream && before.again:
			t.stream = !t.server.streamless(t.began)
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
		if t := &r.tries[i]; t.server == s && t.state == ended && t.err == nil && (t.why != reasonNone || t.worth == truncated && t.stream) {
			return true
		}
	}
	return false
}

// elsewhere reports whether the next try is another server's.
func (r *race) elsewhere(i int) bool { return r.tries[r.next].server != r.tries[i].server }

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
	return t.stream && t.server.tls == nil && !t.stood() && !r.cut()
}

// mayHedge reports whether another try may run beside those that run: always where they wait for a server known to fail, or
// for a stream of one whose streams have failed lately, and once where a client would have asked again by itself; else within
// the share that keeps a slow upstream from being asked everything twice.
func (r *race) mayHedge() bool {
	now := time.Now()
	for i := range r.next {
		t := &r.tries[i]
		if t.state != running {
			continue
		}
		if s := t.server; s.health.failing.Load() || t.stream && !t.stood() && (s.doubtful() || s.streamless(now)) {
			return true
		}
	}
	return r.next == 1 && !now.Before(r.patience) || r.a.servers.hedges.spend()
}

// suspect has those servers looked at of which nothing was heard since this question was asked: whether it is the name, or
// they.
func (r *race) suspect(now time.Time) {
	if r.suspected || now.Sub(r.began) < silentAfter {
		return
	}
	r.suspected = true
	for i := range r.next {
		if t := &r.tries[i]; t.state == running && !t.server.heard(t.began) {
			t.server.suspect(r.a)
		}
	}
}

// cut reports whether the best answer so far is the head of one.
func (r *race) cut() bool { return r.best != nil && r.worth == truncated }

// hopeless reports whether the client should hear now what there is, although the budget is not over: it can come again over
// TCP, or nothing at all was heard of the servers that are waited for.
func (r *race) hopeless(now time.Time) bool {
	early := !now.Before(r.patience)
	if r.cut() && !r.overTCP && (early || now.Sub(r.headed) >= hedgeAfter && r.streamless(now)) {
		return true
	}
	if !early {
		return false
	}
	for i := range r.next {
		if t := &r.tries[i]; t.state == running && t.server.heard(r.began) {
			return false
		}
	}
	return true
}

// streamless reports whether the streams that are waited for are such as have failed lately.
func (r *race) streamless(now time.Time) bool {
	for i := range r.next {
		if t := &r.tries[i]; t.state == running && t.stream && !t.server.streamless(now) && !t.server.doubtful() {
			return false
		}
	}
	return true
}
