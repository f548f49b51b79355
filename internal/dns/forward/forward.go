// Package forward is the CoreDNS plugin that forwards misses to the upstreams over pooled connections. If a server does not answer soon,
// the next one is queried too (a hedged query).
//
// It owns the connections to the servers, their health and the detection of forwarding loops. A server's health follows from answers to
// clients' queries; health checks run only for servers that failed or were silent. It stores no answer, and starts no goroutine for a
// query that its first server answers soon over an open connection.
//
// On failure: a query without a good answer gets the best other answer, for example SERVFAIL, or within the budget an error with each
// server's reason. An error that comes from a limit of this process is marked, so that the cache does not store it. A failing server is
// tried last.
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

// Limits of a query. A client waits 5 s for an answer before it retries or gives up (resolv.conf(5), "timeout"). musl and some others retry
// after half of that, and accept the answer to either query.
const (
	// budget is the maximum time of a query. It is almost as long as clients wait, for names whose authoritative servers are slow.
	budget = 4500 * time.Millisecond
	// silentEnd is the maximum time of a query if none of the servers that it waits for has sent anything since it began, not even an
	// answer to another query. A SERVFAIL within 2 s leaves every client time for another try.
	silentEnd = 1900 * time.Millisecond
	// hedgeAfter is how long the latest try runs before another one starts: to the next server, or to the same one over a new connection.
	// If all servers are silent and the hedging budget suffices, the fourth try starts after 900 ms; with three servers before it, that is
	// the last resort. With a shorter time, a resolver that takes long for its answers would get more queries twice.
	hedgeAfter = 300 * time.Millisecond
	// hedgeAgain is the time until the timer fires again if it has fired and no try was started, for example because the hedging budget
	// (Servers.hedges) refused one. If the running try fails meanwhile, the next one needs no budget.
	hedgeAgain = 50 * time.Millisecond
	// maxTries is the maximum number of tries for one query. It limits the connections and goroutines of a query that goes badly.
	maxTries = 4
	// maxProbes is the maximum number of queries in flight of one server block that are forwarded although all servers are failing. They
	// show when a server answers again; all other queries fail at once. Clients share the number fairly (package fairshare), but each
	// client may have one such query in any case, even above the maximum.
	maxProbes = 64
)

// Block is the plugin's handler in one server block. It forwards queries to the servers that its directive lists.
type Block struct {
	servers *Servers
	zones   []string // the server block's zones, in lower case and fully qualified
	specs   []spec
	resorts []spec   // the servers of the last resort
	stream  bool     // try TCP first
	holds   []string // zones that the servers should hold, see judge

	list     []*server     // specs, then resorts; set by start
	first    int           // index in list of the first server of the last resort
	loops    []atomic.Bool // by index in list: whether the server sends queries back to this node
	probes   probes
	resorted atomic.Uint64 // queries that the last resort answered

	stopWatch context.CancelFunc
	watching  sync.WaitGroup
}

// Name implements plugin.Handler. In a Corefile, the directive is `ask`, because `forward` is CoreDNS's own.
func (a *Block) Name() string { return "ask" }

// Errors of resolve.
var (
	errLoop   = errors.New("every server leads back to this node, see the log and neardns-agent status")
	errProbes = errors.New("every server fails, and enough queries probe them already")
	errCut    = errors.New("the answer is truncated, and the whole does not come over TCP")
)

// limited is an error that comes from a limit of this process, for example the time for a query: the upstream might still have answered.
// The cache passes such a failure on to the clients that wait, but does not store it.
type limited struct{ error }

// Limit marks the error for package cache, which looks for this method because it does not import this package.
func (limited) Limit() bool { return true }

// Unwrap returns the failures of the tries.
func (l limited) Unwrap() error { return l.error }

// probes are the queries in flight that are forwarded although all servers are failing (see maxProbes).
type probes struct {
	mu    sync.Mutex // guards slots
	slots fairshare.Pool
}

// enter reports whether a client's query may be forwarded although all servers are failing. If so, the caller must call leave when the
// query ends.
func (p *probes) enter(client netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots.UsedBy(client) > 0 && !p.slots.MayAcquire(client) {
		return false
	}
	p.slots.Acquire(client)
	return true
}

func (p *probes) leave(client netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Release(client)
}

// ServeDNS implements plugin.Handler. It never calls the next plugin.
func (a *Block) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if len(r.Question) == 1 && r.Question[0].Qtype == loopType && a.servers.isNonce(r.Question[0].Name) {
		return dns.RcodeRefused, nil // the agent's loop detection query came back
	}
	m, err := a.resolve(ctx, r, w.RemoteAddr())
	switch {
	case errors.Is(err, errProbes):
		return dns.RcodeServerFailure, nil // as plugin limit does: count the refusal, but neither store nor log it
	case errors.Is(err, errUnpackable):
		return dns.RcodeFormatError, plugin.Error(a.Name(), err)
	case err != nil:
		return dns.RcodeServerFailure, plugin.Error(a.Name(), err)
	}
	_ = w.WriteMsg(m) // fails only if the client is gone
	return dns.RcodeSuccess, nil
}

// resolve returns an answer to a client's query from one of the servers.
func (a *Block) resolve(ctx context.Context, req *dns.Msg, client net.Addr) (*dns.Msg, error) {
	_, overTCP := client.(*net.TCPAddr)
	r := a.plan(ctx, req, overTCP)
	if r.count == 0 {
		return nil, errLoop
	}
	if r.probing {
		src := fairshare.Client(client)
		if !a.probes.enter(src) {
			a.servers.shed.Add(1)
			return nil, errProbes
		}
		defer a.probes.leave(src)
	}
	return r.run(ctx)
}

// plan returns a client's query with its planned tries; none if all servers lead back to this node.
func (a *Block) plan(ctx context.Context, req *dns.Msg, overTCP bool) *hedgedQuery {
	r := &hedgedQuery{a: a, req: stripOptions(req), began: time.Now(), overTCP: overTCP}
	r.end, r.patience = r.began.Add(budget), r.began.Add(silentEnd)
	if d, ok := ctx.Deadline(); ok && d.Before(r.end) {
		r.end = d
	}
	r.plan(overTCP || a.stream)
	r.probing = r.allFailing()
	return r
}

// maxUDPSize is the maximum size of an answer over UDP in bytes, and so of the buffer that each waiting query has. Longer answers come over
// TCP.
const maxUDPSize = 4096

// stripOptions returns a query without the client's EDNS options, if a cache has not removed them already, and with a UDP size of at most
// maxUDPSize. Cookies and padding are only for the path between client and agent, and the client's subnet must not reach the upstream.
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

// start gets the block's servers from Servers, and starts loop detection. It is called once, when the block begins to serve.
func (a *Block) start() {
	a.probes.slots = fairshare.New(maxProbes)
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

// stop ends loop detection and releases the servers. Queries in flight end by themselves.
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
