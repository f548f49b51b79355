// Package ask is the CoreDNS plugin that asks the upstreams on a miss: over connections that it keeps, by real answers
// alone, and within a time that clients wait.
//
// It owns the connections to the servers, their health and the watch for loops. It must never answer by itself, remember
// an answer, or start a goroutine for a question that its first server answers at once.
//
// Failure policy: a question that nobody answers well ends in SERVFAIL within the budget, with each server's reason in the
// error; a server that fails is asked last and never given up.
package ask

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// The times of a question. A client waits 5 s for an answer before it asks again (resolv.conf(5), "timeout"), and musl and
// some others half of that; a SERVFAIL within 2 s leaves all of them time for another try.
const (
	// budget is for a question in all. An upstream that needs 1.5 s is still heard.
	budget = 1900 * time.Millisecond
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
	// told at once.
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
	trials   atomic.Int32
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
)

// ServeDNS implements plugin.Handler. The plugin is the end of its chain.
func (a *Ask) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 1 && r.Question[0].Qtype == loopType && a.servers.nonces.seen(r.Question[0].Name) {
		return dns.RcodeRefused, nil // our own question: here the loop ends
	}
	_, overTCP := w.RemoteAddr().(*net.TCPAddr)
	m, err := a.resolve(ctx, r, overTCP)
	if err != nil {
		if errors.Is(err, errUnpackable) {
			return dns.RcodeFormatError, plugin.Error(a.Name(), err)
		}
		return dns.RcodeServerFailure, plugin.Error(a.Name(), err)
	}
	_ = w.WriteMsg(m) // the client is gone
	return dns.RcodeSuccess, nil
}

// resolve gets an answer to req. overTCP says how the client asked.
func (a *Ask) resolve(ctx context.Context, req *dns.Msg, overTCP bool) (*dns.Msg, error) {
	r := race{a: a, req: req, began: time.Now()}
	r.end = r.began.Add(budget)
	if d, ok := ctx.Deadline(); ok && d.Before(r.end) {
		r.end = d
	}
	r.plan(overTCP || a.stream)
	if r.count == 0 {
		return nil, errLoop
	}
	if r.dead() {
		if a.trials.Add(1) > maxTrials {
			a.trials.Add(-1)
			return nil, errTrials
		}
		defer a.trials.Add(-1)
	}
	return r.run(ctx)
}

// start takes the servers; it is called once, when the block begins to serve.
func (a *Ask) start() {
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
