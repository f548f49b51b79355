// Package forward is the CoreDNS plugin that forwards misses to the upstreams, with hedged queries over pooled connections.
//
// It owns the connections to the servers, their health and the detection of forwarding loops. A server's health follows from answers to
// clients' queries; health checks run only for servers that failed or were silent. It stores no answer, makes none itself, and starts no
// goroutine for a query that its first server answers at once.
//
// On failure: a query without a good answer ends in SERVFAIL within the budget, with each server's reason in the error. An error that
// comes from the agent's own limits is marked, so that the cache does not store it. A failing server is tried last, but never dropped.
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

// The times of a query. A client waits 5 s for an answer before it retries or gives up (resolv.conf(5), "timeout"). musl and some others
// retry after half of that, and take the answer to either query.
const (
	// budget bounds a query in total. A name whose own servers are slow is answered as without neardns.
	budget = 4500 * time.Millisecond
	// silentEnd bounds a query if its servers have sent nothing meanwhile, not even an answer to another query. A SERVFAIL within 2 s
	// leaves every client time for another try.
	silentEnd = 1900 * time.Millisecond
	// hedgeAfter is how long one try runs alone before the next server, or the same one over a new connection, is tried next to it. Three
	// silent tries bring the fourth, which is always the last resort's, to 900 ms. A shorter time would double the queries to a
	// resolver that fetches its answers from far away.
	hedgeAfter = 300 * time.Millisecond
	// hedgeAgain is the pause before the budget of second tries (see hedges) is tried again. The running try may fail meanwhile, and then
	// needs no budget.
	hedgeAgain = 50 * time.Millisecond
	// maxTries bounds the cost of a query: its lines, and its goroutines while it goes badly.
	maxTries = 4
	// maxTrials bounds the queries in flight while every server is dead: up to 64 queries probe the dead servers, and all others fail
	// immediately. Clients share them fairly (package fairshare); each client's first query does not count.
	maxTrials = 64
)

// Block forwards the queries of one server block to one list of servers. It implements the plugin's directive.
type Block struct {
	servers *Servers
	zones   []string // the block's, lower case, fully qualified
	specs   []spec
	resorts []spec // the last resort
	stream  bool   // try TCP first
	holds   []string

	list     []*server // specs, then resorts; from start to stop
	first    int       // the index of the first last resort
	loops    []atomic.Bool
	trials   trials
	resorted atomic.Uint64 // queries that the last resort answered

	stopWatch context.CancelFunc
	watching  sync.WaitGroup
}

// Name implements plugin.Handler.
func (a *Block) Name() string { return "ask" }

// Errors of queries that are not forwarded.
var (
	errLoop   = errors.New("every server leads back to this node, see the log and neardns-agent status")
	errTrials = errors.New("every server fails, and enough queries probe them already")
	errCut    = errors.New("the answer is truncated, and the whole does not come over TCP")
)

// limited is an error of this agent's own limits: the upstream might have answered later, or may answer the next query. The cache passes
// it to the waiting clients and stores nothing.
type limited struct{ error }

// Limit marks the error for the cache, which does not import this package.
func (limited) Limit() bool { return true }

// Unwrap returns the failures so far.
func (l limited) Unwrap() error { return l.error }

// trials are the queries that probe dead servers.
type trials struct {
	mu    sync.Mutex // guards slots
	slots fairshare.Pool
}

// enter reports whether a client's query may probe. If it may, the caller must call leave.
func (t *trials) enter(client netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots.UsedBy(client) > 0 && !t.slots.MayAcquire(client) {
		return false
	}
	t.slots.Acquire(client)
	return true
}

func (t *trials) leave(client netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.Release(client)
}

// ServeDNS implements plugin.Handler. The plugin is the last of its chain.
func (a *Block) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 1 && r.Question[0].Qtype == loopType && a.servers.nonces.seen(r.Question[0].Name) {
		return dns.RcodeRefused, nil // the agent's own query came back: the loop ends here
	}
	m, err := a.resolve(ctx, r, w.RemoteAddr())
	switch {
	case errors.Is(err, errTrials):
		return dns.RcodeServerFailure, nil // as plugin limit sheds: counted, but neither stored nor logged
	case errors.Is(err, errUnpackable):
		return dns.RcodeFormatError, plugin.Error(a.Name(), err)
	case err != nil:
		return dns.RcodeServerFailure, plugin.Error(a.Name(), err)
	}
	_ = w.WriteMsg(m) // fails only if the client is gone
	return dns.RcodeSuccess, nil
}

// resolve gets an answer to a client's query.
func (a *Block) resolve(ctx context.Context, req *dns.Msg, client net.Addr) (*dns.Msg, error) {
	r := hedgedQuery{a: a, req: stripOptions(req), began: time.Now()}
	r.end, r.patience = r.began.Add(budget), r.began.Add(silentEnd)
	if d, ok := ctx.Deadline(); ok && d.Before(r.end) {
		r.end = d
	}
	_, r.overTCP = client.(*net.TCPAddr)
	r.plan(r.overTCP || a.stream)
	if r.count == 0 {
		return nil, errLoop
	}
	if r.trial = r.allFailing(); r.trial {
		src := fairshare.Client(client)
		if !a.trials.enter(src) {
			a.servers.shed.Add(1)
			return nil, errTrials
		}
		defer a.trials.leave(src)
	}
	return r.run(ctx)
}

// maxUDPSize bounds the answers over datagrams in bytes: a waiting query holds a buffer of that size. Longer answers come over a stream.
const maxUDPSize = 4096

// stripOptions returns a query without the client's EDNS options, unless a cache has removed them already. Cookies and padding hold
// between two hops (RFC 7873, section 5; RFC 7830, section 3), and the client's subnet must not reach the upstream.
func stripOptions(req *dns.Msg) *dns.Msg {
	o := req.IsEdns0()
	if o == nil || len(o.Option) == 0 && o.UDPSize() <= maxUDPSize {
		return req
	}
	m := *req
	m.Extra = nil
	for _, rr := range req.Extra {
		if rr == o {
			bare := &dns.OPT{Hdr: o.Hdr}
			bare.SetUDPSize(min(o.UDPSize(), maxUDPSize))
			rr = bare
		}
		m.Extra = append(m.Extra, rr)
	}
	return &m
}

// start acquires the servers. It is called once, when the block begins to serve.
func (a *Block) start() {
	a.trials.slots = fairshare.New(maxTrials)
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

// stop releases the servers. Queries in flight end by themselves.
func (a *Block) stop() {
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
