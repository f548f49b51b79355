// Package forward is the CoreDNS plugin that asks the upstreams on a miss: over connections that it keeps, by real answers
// alone, and for as long as clients wait.
//
// It owns the connections to the servers, their health and the watch for loops. It must never answer by itself, remember
// an answer, or start a goroutine for a question that its first server answers at once.
//
// Failure policy: a question that nobody answers well ends in SERVFAIL within the budget, with each server's reason in the
// error; what is only our own limit says so, and is not to be kept; a server that fails is asked last and never given up.
package forward

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// The times of a question. A client waits 5 s for an answer before it asks again or gives up (resolv.conf(5), "timeout");
// musl and some others ask again after half of that, and take the answer to either question.
const (
	// budget is for a question in all: a name whose own servers are slow is answered as without us.
	budget = 4500 * time.Millisecond
	// silentEnd is for a question of whose servers nothing was heard meanwhile, not even an answer to somebody else: a
	// SERVFAIL within 2 s leaves every client time for another try.
	silentEnd = 1900 * time.Millisecond
	// hedgeAfter is how long one try is waited for before the next server, or the same one over a new connection, is
	// asked beside it. Three silent tries bring the fourth, always the last resort's place, to 900 ms. Shorter would double
	// the questions to a resolver that fetches its answers from afar.
	hedgeAfter = 300 * time.Millisecond
	// hedgeAgain is when a try that was not granted (see hedges) is looked at again: meanwhile the server that is waited
	// for may have been found failing.
	hedgeAgain = 50 * time.Millisecond
	// maxTries bounds what one question costs: as many lines, and goroutines while it goes badly.
	maxTries = 4
	// maxTrials bounds the questions in flight while every server is dead: those tell when one is back, the others are
	// told at once. They are shared by who asks (package places); the first of each source is beyond the bound.
	maxTrials = 64
)

// Ask asks one list of servers for one server block.
type Ask struct {
	servers *Servers
	zones   []string // the block's, lower case, fully qualified
	specs   []spec
	resorts []spec // the last resort
	stream  bool   // ask over TCP first
	holds   []string

	list     []*server // specs, then resorts; from start to stop
	first    int       // how many of them are no last resort
	loops    []atomic.Bool
	trials   trials
	resorted atomic.Uint64 // questions that the last resort answered

	stopWatch context.CancelFunc
	watching  sync.WaitGroup
}

// Name implements plugin.Handler.
func (a *Ask) Name() string { return "ask" }

// Errors of questions that are not asked.
var (
	errLoop   = errors.New("every server leads back to this node, see the log and neardns-agent status")
	errTrials = errors.New("every server fails, and enough questions try them already")
	errCut    = errors.New("only the head of the answer is to be had, over TCP")
)

// limited is a failure that is only this agent's limit: the upstream might still have answered, or answers the next one. The
// cache in front tells those who wait, and keeps nothing of it.
type limited struct{ error }

// Limit tells the cache, which knows no error of this package by name.
func (limited) Limit() bool { return true }

// Unwrap gives what had failed by then.
func (l limited) Unwrap() error { return l.error }

// trials are the questions that try dead servers.
type trials struct {
	mu     sync.Mutex // guards places
	places fairshare.Pool
}

// enter lets a question of src try, or not. Who was let in must leave.
func (t *trials) enter(src netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.places.UsedBy(src) > 0 && !t.places.MayAcquire(src) {
		return false
	}
	t.places.Acquire(src)
	return true
}

func (t *trials) leave(src netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places.Release(src)
}

// ServeDNS implements plugin.Handler. The plugin is the end of its chain.
func (a *Ask) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 1 && r.Question[0].Qtype == loopType && a.servers.nonces.seen(r.Question[0].Name) {
		return dns.RcodeRefused, nil // our own question: here the loop ends
	}
	m, err := a.resolve(ctx, r, w.RemoteAddr())
	switch {
	case errors.Is(err, errTrials):
		return dns.RcodeServerFailure, nil // as limit sheds: it is counted, and nothing of it is kept or logged
	case errors.Is(err, errUnpackable):
		return dns.RcodeFormatError, plugin.Error(a.Name(), err)
	case err != nil:
		return dns.RcodeServerFailure, plugin.Error(a.Name(), err)
	}
	_ = w.WriteMsg(m) // the client is gone
	return dns.RcodeSuccess, nil
}

// resolve gets an answer to req, for client.
func (a *Ask) resolve(ctx context.Context, req *dns.Msg, client net.Addr) (*dns.Msg, error) {
	r := race{a: a, req: ours(req), began: time.Now()}
	r.end, r.patience = r.began.Add(budget), r.began.Add(silentEnd)
	if d, ok := ctx.Deadline(); ok && d.Before(r.end) {
		r.end = d
	}
	_, r.overTCP = client.(*net.TCPAddr)
	r.plan(r.overTCP || a.stream)
	if r.count == 0 {
		return nil, errLoop
	}
	if r.trial = r.dead(); r.trial {
		src := fairshare.Client(client)
		if !a.trials.enter(src) {
			a.servers.shed.Add(1)
			return nil, errTrials
		}
		defer a.trials.leave(src)
	}
	return r.run(ctx)
}

// sizeMost bounds the answers that are taken over datagrams: a question that waits holds a buffer for one, and what is longer comes over
// a stream.
const sizeMost = 4096

// ours is a question without the client's EDNS options, where no cache in front has made it anew: cookies and padding are
// between two hops (RFC 7873, section 5; RFC 7830, section 3), and a client's subnet is no business of the upstream's.
func ours(req *dns.Msg) *dns.Msg {
	o := req.IsEdns0()
	if o == nil || len(o.Option) == 0 && o.UDPSize() <= sizeMost {
		return req
	}
	m := *req
	m.Extra = nil
	for _, rr := range req.Extra {
		if rr == o {
			bare := &dns.OPT{Hdr: o.Hdr}
			bare.SetUDPSize(min(o.UDPSize(), sizeMost))
			rr = bare
		}
		m.Extra = append(m.Extra, rr)
	}
	return &m
}

// start takes the servers; it is called once, when the block begins to serve.
func (a *Ask) start() {
	a.trials.places = fairshare.New(maxTrials)
	for _, sp := range a.specs {
		a.list = append(a.list, a.servers.acquire(sp))
	}
	a.first = len(a.list)
	for _, sp := range a.resorts {
		a.list = append(a.list, a.servers.acquire(sp))
	}
	a.loops = make([]atomic.Bool, len(a.list))
	a.servers.join(a)
	ctx, cancel := context.WithCancel(context.Background())
	a.stopWatch = cancel
	a.watching.Go(func() { a.watchLoops(ctx) })
}

// stop gives the servers back. What is still asked ends by itself.
func (a *Ask) stop() {
	if a.stopWatch == nil {
		return // never started
	}
	a.stopWatch()
	a.watching.Wait()
	a.stopWatch = nil
	a.servers.leave(a)
	for _, s := range a.list {
		a.servers.release(s)
	}
}
