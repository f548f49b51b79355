package forward

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

var errUnpackable = errors.New("the query cannot be packed")

// try is one query to one server.
type try struct {
	server *server
	at     int  // index in the list of servers
	stream bool // over TCP or TLS
	again  bool // an earlier try went to the same server
	fresh  bool // over a new connection

	state     state
	why       reason
	worth     verdict // of its answer
	err       error
	began     time.Time
	connected *atomic.Bool // whether it has a connection; nil: it had one from the start
	rejected  error        // the network has rejected its datagram, but the try goes on; see rejection
}

// hasConnection reports whether the try had a connection.
func (t *try) hasConnection() bool { return t.connected == nil || t.connected.Load() }

type state uint8

const (
	planned state = iota
	running
	ended
)

// hedgedQuery is one query on its way to the upstreams. The first try runs in the query's own goroutine until it has taken hedgeAfter;
// from then on each try has its own goroutine, and the first good answer wins.
type hedgedQuery struct {
	a           *Block
	req         *dns.Msg
	began, end  time.Time
	patience    time.Time // when it ends if no server has sent anything
	overTCP     bool      // the client uses TCP, so it has no other transport to retry over
	trial       bool      // every server was dead when it began
	suspected   bool      // health checks of the silent servers are running
	tries       [maxTries]try
	count       int // tries planned
	next        int // the first try that has not begun
	best        *dns.Msg
	worth       verdict   // of best
	truncatedAt time.Time // when best, a truncated answer, came
	late        bool      // this process was delayed, so a server's slowness proves nothing
}

// plan orders the servers: healthy ones in configured order, then the last resort, then failing ones. The tries that are left repeat the
// first servers.
func (r *hedgedQuery) plan(stream bool) {
	now := r.began
	add := func(s *server, at int, again bool) {
		if r.count < maxTries {
			r.tries[r.count] = try{server: s, at: at, again: again, stream: s.tls != nil || stream && s.streamFirst(now)}
			r.count++
		}
	}
	a := r.a
	usable := func(i int) bool { return !a.loops[i].Load() }
	healthy := func(i int) bool { return usable(i) && !a.list[i].health.failing.Load() }
	reserve := 0 // one try is kept for the last resort
	for i := a.first; i < len(a.list); i++ {
		if healthy(i) {
			reserve = 1
		}
	}
	for i := range a.first {
		if s := a.list[i]; r.count < maxTries-reserve && (healthy(i) || usable(i) && s.takeTurn(now)) {
			add(s, i, false)
		}
	}
	for i := a.first; i < len(a.list); i++ {
		if healthy(i) {
			add(a.list[i], i, false)
		}
	}
	for i, s := range a.list {
		if usable(i) && s.health.failing.Load() && !r.isPlanned(s) {
			add(s, i, false)
		}
	}
	servers := r.count
	for range 2 { // a single server gets a third try
		for i := range servers {
			add(r.tries[i].server, r.tries[i].at, true)
		}
		if servers > 1 {
			break
		}
	}
}

func (r *hedgedQuery) isPlanned(s *server) bool {
	return slices.ContainsFunc(r.tries[:r.count], func(t try) bool { return t.server == s })
}

// allFailing reports whether every server planned is known to fail.
func (r *hedgedQuery) allFailing() bool {
	for i := range r.count {
		if !r.tries[i].server.health.failing.Load() {
			return false
		}
	}
	return true
}

// run queries the servers until one answers well, all have failed or time is up.
func (r *hedgedQuery) run(ctx context.Context) (*dns.Msg, error) {
	buf, wire, err := r.a.servers.bufs.pack(r.req)
	if err != nil {
		return nil, errors.Join(errUnpackable, err)
	}
	r.a.servers.hedges.earn()
	pending, m := r.begin(wire)
	if m == nil {
		wire = slices.Clone(wire) // many queries may wait for long, so each holds only what it needs
	}
	r.a.servers.bufs.put(buf)
	if m != nil {
		return m, nil
	}
	return r.contend(ctx, wire, pending)
}

// pendingTry is a first try that has taken hedgeAfter without an answer.
type pendingTry struct {
	line *line
	id   uint16
}

// begin runs the first try as far as that needs no goroutine. It returns an answer or a pending try. If it returns neither, the try has
// failed, or has not begun because it needs a new connection.
func (r *hedgedQuery) begin(wire []byte) (*pendingTry, *dns.Msg) {
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
	case sent && (isTimeout(err) || l.rejected != nil):
		t.rejected = l.rejected
		return &pendingTry{l, id}, nil
	case l.stale(err):
		l.close(s.bufs)
		s.pool(true).flush() // the server has probably closed the others too
		t.state, t.fresh, r.next = planned, true, 0
	default:
		l.close(s.bufs)
		r.take(outcome{err: err})
	}
	return nil, nil
}

// contest runs the tries of a hedgedQuery after the first one, each in a goroutine.
type contest struct {
	*hedgedQuery
	ctx      context.Context
	wire     []byte
	request  *dns.Msg // a copy: the caller may change its own once the query has returned, before the losing tries notice
	outcomes chan outcome
	active   int // running tries
	timer    *time.Timer
	due      time.Time // of timer
}

// contend runs the other tries until one answers well, nothing more can be gained, or time is up.
func (r *hedgedQuery) contend(ctx context.Context, wire []byte, pending *pendingTry) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the losing tries
	c := &contest{hedgedQuery: r, ctx: ctx, wire: wire, request: r.req.Copy(), outcomes: make(chan outcome, 2*maxTries)}
	c.timer = time.NewTimer(0)
	defer c.timer.Stop()
	c.wait(hedgeAfter)
	c.open(pending)
	for c.active > 0 || r.more() && time.Now().Before(r.end) {
		select {
		case out := <-c.outcomes:
			if c.handle(out) {
				r.settle(out.try)
				return r.best, nil
			}
		case <-c.timer.C:
			c.checkLate(c.due)
			if c.react(timerFired, 0) {
				r.settle(-1)
				return r.finish(nil)
			}
		case <-ctx.Done():
			r.settle(-1)
			return r.finish(ctx.Err())
		}
	}
	r.settle(-1)
	return r.finish(nil)
}

// open goes on with a pending first try and starts the second try if it may start already.
func (c *contest) open(pending *pendingTry) {
	switch {
	case pending == nil && c.next == 0:
		c.start()
		return
	case pending == nil:
		c.react(tryEnded, 0)
		return
	}
	c.checkLate(c.began.Add(hedgeAfter))
	c.active++
	s, end := c.tries[0].server, c.end
	go func() { // ends with its answer, at end or with ctx
		m, err := s.listen(c.ctx, pending, c.request, end, c.rejection(0))
		c.outcomes <- outcome{try: 0, msg: m, err: err}
	}()
	if c.tries[0].rejected != nil {
		c.react(tryRejected, 0)
	} else if c.react(timerFired, 0) {
		c.wait(hedgeAgain) // this process was stopped: the answer may have come meanwhile
	}
}

// start begins the next try.
func (c *contest) start() {
	i := c.next
	c.next++
	c.active++
	c.prepare(i)
	t, end, own := c.tries[i], c.end, slices.Clone(c.wire)
	go func() { // ends with its answer, at end or with ctx
		m, err := t.server.exchange(c.ctx, c.request, own, way{t.stream, t.fresh, t.connected, c.rejection(i)}, end)
		c.outcomes <- outcome{try: i, msg: m, err: err}
	}()
}

// rejection returns the function that reports a rejected datagram of a try that goes on.
func (c *contest) rejection(try int) func(error) {
	return func(err error) { c.outcomes <- outcome{try: try, err: err, rejected: true} }
}

// wait sets the timer, at the latest to the end of patience.
func (c *contest) wait(d time.Duration) {
	now := time.Now()
	if left := c.patience.Sub(now); left > 0 {
		d = min(d, left)
	}
	c.timer.Reset(d)
	c.due = now.Add(d)
}

// handle applies an outcome. It reports whether the outcome is the answer.
func (c *contest) handle(out outcome) (won bool) {
	if out.rejected {
		c.tries[out.try].rejected = out.err
		c.react(tryRejected, out.try)
		return false
	}
	c.active--
	if c.take(out) {
		return true
	}
	c.react(tryEnded, out.try)
	return false
}

// react takes the step that follows an event of a try. It reports whether the query should end now.
func (c *contest) react(e event, try int) (over bool) {
	now := time.Now()
	if e == timerFired {
		c.suspect(now)
	}
	if e != tryEnded {
		c.a.servers.NoteTrouble()
	}
	switch next := c.situation(e, try, now).next(); {
	case next == stepFinish:
		return true
	case next == stepStart, next == stepStartInBudget && c.a.servers.hedges.spend():
		c.start()
		c.wait(hedgeAfter)
	case e == timerFired:
		c.wait(hedgeAgain)
	}
	return false
}

// situation describes the query after an event of a try.
func (c *contest) situation(e event, try int, now time.Time) situation {
	s := situation{event: e, more: c.more(), idle: c.active == 0, alone: c.next == 1, overdue: !now.Before(c.patience)}
	if s.more && e != timerFired {
		s.elsewhere = c.tries[c.next].server != c.tries[try].server
		s.otherWay = c.mayRepeat(try)
	}
	for i := range c.next {
		if t := &c.tries[i]; t.state == running {
			s.free = s.free || t.server.health.failing.Load() || t.stream && !t.hasConnection()
			s.heard = s.heard || t.server.heard(c.began)
		}
	}
	s.headOnly = c.isTruncated() && !c.overTCP && (s.overdue || now.Sub(c.truncatedAt) >= hedgeAfter)
	return s
}

// checkLate records whether this process is late for something that was due.
func (r *hedgedQuery) checkLate(due time.Time) { r.late = r.late || time.Since(due) > stalled }

// listen goes on waiting for the answer to a pending try.
func (s *server) listen(ctx context.Context, p *pendingTry, req *dns.Msg, end time.Time, rejected func(error)) (*dns.Msg, error) {
	_ = p.line.conn.SetDeadline(end) // see over
	if p.line.rejected != nil {
		p.line.extend(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.line.conn.SetDeadline(time.Unix(1, 0)) })
	m, err := p.line.await(ctx, s.bufs, req, p.id, end, rejected)
	if !stop() || err != nil {
		p.line.close(s.bufs)
		return m, errors.Join(err, ctx.Err())
	}
	s.pool(p.line.stream).give(p.line)
	return m, nil
}

// prepare chooses the transport of a try. A repeated try to a server never uses the connection that did not answer, and finally uses the
// other protocol.
func (r *hedgedQuery) prepare(i int) {
	t := &r.tries[i]
	t.state, t.began, t.connected = running, time.Now(), new(atomic.Bool)
	if !t.again {
		return
	}
	t.fresh = true
	if r.isTruncated() && t.server.tls == nil { // the answer does not fit a datagram
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
		case before.stream && (before.fresh || before.connected != nil): // a new connection did no better than the pooled one
			t.stream = false
		case !before.stream && before.again:
			t.stream = true
		default:
			t.stream = before.stream
		}
		return
	}
}

// more reports whether a try is left. A server that has answered is not tried again, because it would give the same answer.
func (r *hedgedQuery) more() bool {
	for r.next < r.count && r.tries[r.next].again && r.hasAnswered(r.tries[r.next].server) {
		r.next++
	}
	return r.next < r.count
}

func (r *hedgedQuery) hasAnswered(s *server) bool {
	for i := range r.next {
		if t := &r.tries[i]; t.server == s && t.state == ended && t.err == nil && (t.why != reasonNone || t.worth == truncated && t.stream) {
			return true
		}
	}
	return false
}

// mayRepeat reports whether the same server may be tried again at once after try i has failed.
func (r *hedgedQuery) mayRepeat(i int) bool {
	t := &r.tries[i]
	if t.err == nil || t.why == reasonBroken {
		return true // truncated, or only this connection ended
	}
	return t.stream && t.server.tls == nil && !t.hasConnection() && !r.isTruncated() // the next try uses a datagram
}

// suspect starts health checks of the servers that have sent nothing since this query began, to find out whether the name or the server
// is at fault.
func (r *hedgedQuery) suspect(now time.Time) {
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

// isTruncated reports whether the best answer so far is truncated.
func (r *hedgedQuery) isTruncated() bool { return r.best != nil && r.worth == truncated }
