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
	again  bool // an earlier try of this query goes to the same server
	fresh  bool // over a new connection

	state     state
	why       reason
	worth     verdict // of its answer; good also if there is none
	err       error
	began     time.Time
	connected *atomic.Bool // set when the try gets a connection; nil for the try that func begin started
	rejected  error        // an ICMP error for the datagram that func begin sent, after which the try goes on; see func rejection
}

// hasConnection reports whether the try has ever had a connection to the server.
func (t *try) hasConnection() bool { return t.connected == nil || t.connected.Load() }

type state uint8

const (
	planned state = iota
	running
	ended
)

// hedgedQuery is a client's query while it is forwarded. For up to hedgeAfter, the first try runs in the goroutine of the client's query,
// unless it needs a new TCP connection. After that each try has its own goroutine, and the first good answer wins.
type hedgedQuery struct {
	a           *Block
	req         *dns.Msg
	began, end  time.Time
	patience    time.Time // when the query ends if no server that it waits for has sent anything since it began
	overTCP     bool      // the client uses TCP, so a truncated answer is of no use to it
	probing     bool      // all servers of its tries were failing when it began
	suspected   bool      // health checks of the servers that sent nothing have been started
	tries       [maxTries]try
	count       int       // number of planned tries
	next        int       // index of the next try to start
	best        *dns.Msg  // the best answer so far; nil: none came
	worth       verdict   // of best
	truncatedAt time.Time // when the latest truncated answer over UDP came
	late        bool      // this process was delayed, so a late answer proves nothing about a server
}

// plan sets the order in which servers are tried: healthy ones as configured, and with them failing ones whose turn it is (takeTurn); then
// the last resort if it is healthy; then the other failing ones. Tries that are left repeat the servers from the start. Servers that lead
// back to this node are left out.
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
	reserve := 0 // one try is reserved for a last resort that is healthy
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
		if usable(i) && s.health.failing.Load() && !hasServer(r.tries[:r.count], s) {
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

// hasServer reports whether one of the tries goes to s.
func hasServer(tries []try, s *server) bool {
	return slices.ContainsFunc(tries, func(t try) bool { return t.server == s })
}

// allFailing reports whether all servers of the planned tries are failing.
func (r *hedgedQuery) allFailing() bool {
	for i := range r.count {
		if !r.tries[i].server.health.failing.Load() {
			return false
		}
	}
	return true
}

// run tries the servers until one gives a good answer, all have failed, or the time is up.
func (r *hedgedQuery) run(ctx context.Context) (*dns.Msg, error) {
	buf, wire, err := r.a.servers.bufs.pack(r.req)
	if err != nil {
		return nil, errors.Join(errUnpackable, err)
	}
	r.a.servers.hedges.earn()
	pending, m := r.begin(wire)
	if m == nil {
		wire = slices.Clone(wire) // a copy of the exact size, because many queries may wait for long
	}
	r.a.servers.bufs.put(buf)
	if m != nil {
		return m, nil
	}
	return r.contend(ctx, wire, pending)
}

// pendingTry is the first try while it waits for its answer: for more than hedgeAfter, or after an ICMP error.
type pendingTry struct {
	line *line
	id   uint16
}

// begin runs the first try for up to hedgeAfter in the present goroutine, if it needs no new TCP connection. It returns an answer, or a try
// that is still pending. If it returns neither, the try has ended without a good answer, or it needs a new connection (next is then 0).
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
	_ = l.conn.SetDeadline(until) // fails only if the socket is closed, and then sending fails too
	id, err := l.send(wire)
	sent := err == nil
	var m *dns.Msg
	if sent {
		m, err = l.receive(&s.of.bufs, r.req, id)
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
		l.close(&s.of.bufs)
		s.pool(true).flush() // the server has probably closed its other idle connections too
		t.state, t.fresh, r.next = planned, true, 0
	default:
		l.close(&s.of.bufs)
		r.take(outcome{err: err})
	}
	return nil, nil
}

// contest runs the tries of a hedgedQuery that begin has not completed, each in a goroutine.
type contest struct {
	*hedgedQuery
	ctx      context.Context
	wire     []byte
	request  *dns.Msg // a copy, because a losing try may read it after the caller has changed its own
	outcomes chan outcome
	active   int // number of running tries
	timer    *time.Timer
	due      time.Time // when timer fires
}

// contend runs tries until one gives a good answer, another try cannot help, or the time is up.
func (r *hedgedQuery) contend(ctx context.Context, wire []byte, pending *pendingTry) (*dns.Msg, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the losing tries
	c := &contest{hedgedQuery: r, ctx: ctx, wire: wire, request: r.req.Copy(), outcomes: make(chan outcome, maxTries)}
	c.timer = time.NewTimer(0)
	defer c.timer.Stop()
	c.wait(hedgeAfter)
	c.open(pending)
	for c.active > 0 || r.more() && time.Now().Before(r.end) {
		select {
		case out := <-c.outcomes:
			c.active--
			if c.take(out) {
				r.settle(out.try)
				return r.best, nil
			}
			c.react(tryEnded, out.try)
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

// open continues a pending first try in a goroutine, and starts the second try if that is allowed already. If none is pending, it starts
// the first try, or reacts to its failure.
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
	go func() { // ends with an answer or an error, at the latest at the time end or when ctx is canceled
		m, err := s.listen(c.ctx, pending, c.request, end)
		c.outcomes <- outcome{try: 0, msg: m, err: err}
	}()
	if c.tries[0].rejected != nil {
		c.react(tryRejected, 0)
	} else if c.react(timerFired, 0) {
		c.wait(hedgeAgain) // the query is overdue only because this process was stopped, so its answer may have come meanwhile
	}
}

// start begins the next try.
func (c *contest) start() {
	i := c.next
	c.next++
	c.active++
	c.prepare(i)
	t, end, own := c.tries[i], c.end, slices.Clone(c.wire)
	go func() { // ends with an answer or an error, at the latest at the time end or when ctx is canceled
		m, err := t.server.exchange(c.ctx, c.request, own, way{t.stream, t.fresh, t.connected}, end)
		c.outcomes <- outcome{try: i, msg: m, err: err}
	}()
}

// wait sets the timer to fire after d, or at the time c.patience if that is sooner and not past.
func (c *contest) wait(d time.Duration) {
	now := time.Now()
	if left := c.patience.Sub(now); left > 0 {
		d = min(d, left)
	}
	c.timer.Reset(d)
	c.due = now.Add(d)
}

// react decides what follows an event, and starts the next try if necessary. It reports whether the query should end now.
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

// situation returns everything on which the reaction to an event depends.
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

// checkLate sets r.late if this process runs much later than due, because it was stopped or got no CPU.
func (r *hedgedQuery) checkLate(due time.Time) { r.late = r.late || time.Since(due) > stalled }

// listen continues to wait for the answer to a pending try.
func (s *server) listen(ctx context.Context, p *pendingTry, req *dns.Msg, end time.Time) (*dns.Msg, error) {
	_ = p.line.conn.SetDeadline(end) // fails only if the socket is closed, and then receiving fails too
	stop := context.AfterFunc(ctx, func() { _ = p.line.conn.SetDeadline(time.Unix(1, 0)) })
	m, err := p.line.await(ctx, &s.of.bufs, req, p.id, end)
	if !stop() || err != nil {
		p.line.close(&s.of.bufs)
		return m, errors.Join(err, ctx.Err())
	}
	s.pool(p.line.stream).give(p.line)
	return m, nil
}

// prepare chooses the protocol of a try, and whether it needs a new connection. A repeated try to a server uses a new one, and may use the
// other protocol than the try before it to this server.
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
		case before.stream && (before.fresh || before.connected != nil): // TCP has failed, and not only over begin's pooled connection
			t.stream = false
		case !before.stream && before.again:
			t.stream = true
		default:
			t.stream = before.stream
		}
		return
	}
}

// more reports whether a try is left. It skips repeated tries to a server that has answered, because its answer would be the same, unless
// it was truncated over UDP.
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

// mayRepeat reports whether the next try may go to the same server at once after try i has failed.
func (r *hedgedQuery) mayRepeat(i int) bool {
	t := &r.tries[i]
	if t.err == nil || t.why == reasonBroken {
		return true // truncated, or only this connection ended
	}
	return t.stream && t.server.tls == nil && !t.hasConnection() && !r.isTruncated() // the next try uses a datagram
}

// suspect starts health checks of the servers that have sent nothing since their try began, once per query and not before silentAfter. They
// show whether the server or the queried name is at fault.
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

// isTruncated reports whether the best answer so far is a truncated one.
func (r *hedgedQuery) isTruncated() bool { return r.best != nil && r.worth == truncated }
