// Package node is the control loop of the agent on one node: it reconciles link, addresses, host rules, server, prober and leases with
// the plan.
//
// Its invariant: a pod's UDP query or new TCP connection reaches the agent's socket only while that socket has just answered a probe that
// took the pods' path. The package decides only the order of changes, the retries, and when a lease is renewed or withdrawn; small
// interfaces hide the parts that do the work. One goroutine changes link, rules and server, and one goroutine per target probes it and
// renews its lease. At the end the leases are withdrawn, unless a successor keeps them, and the server stops; link and host rules stay,
// because pods keep sending to the agent's addresses. The package reads no configuration: New and Set take the plan.
//
// Failure policy: the loop retries a failed step until it succeeds, with a bounded backoff, and logs the error of a part when its text
// changes; it drops a new plan that the server refuses. Without a running server no probe is answered, so kube-dns answers pods meanwhile.
// Only a watch that cannot be opened at the start ends Run early.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/backoff"
	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// Times of the loop.
const (
	slowCheck  = 30 * time.Second       // between two full checks, which the loop runs even without an event, unless Terms.Check is set
	minGap     = 50 * time.Millisecond  // between two rounds, so that a storm of events costs little
	retryFirst = 250 * time.Millisecond // from a failed round to the next; doubles with each further failure
	retryLast  = 10 * time.Second       // the longest time from a failed round to the next
)

// Server answers DNS queries. Start serves either all addresses or none. If Restart fails, the old server keeps serving.
type Server interface {
	Start(ctx context.Context, cfg server.Config) error
	Restart(ctx context.Context, cfg server.Config) error
	Stop() error
	// Pause stops reading until Resume or Stop. Queries wait in the sockets.
	Pause()
	Resume()
	// Done is closed when no socket is served any more, whatever the reason.
	Done() <-chan struct{}
}

// Link reconciles the agent's network interface and the addresses on it. Ensure returns a description of what it repaired; "" for
// nothing.
type Link interface {
	Ensure(name string, addresses []netip.Addr) (repaired string, err error)
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Rules are the host's packet rules. Repair changes them to what rs describes, and returns the differences that it found.
type Rules interface {
	Repair(rs steer.Host) (drift []string, err error)
	// Unexempt ends the exemption of pods' addresses from interception. Repair only adds exemptions, because the plugin adds some too.
	Unexempt(addrs ...netip.Addr) error
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Lease sends the lease datagrams.
type Lease interface {
	Renew(addr netip.Addr, p steer.Protocol) error
	Withdraw(addr netip.Addr, p steer.Protocol) error
}

// Prober sends queries on the pods' path.
type Prober interface {
	Reconfigure(redirects []steer.Redirect, locals []netip.Addr) error
	Repair() (repaired string, err error)
	Probe(ctx context.Context, target netip.Addr, p steer.Protocol) prober.Result
	CheckFallback(ctx context.Context, clusterDNS netip.Addr, name string) error
	Close() error
}

// Pods is the registry of pods on this node.
type Pods interface {
	Watch(ctx context.Context) <-chan struct{}
	plan.Pods
	// Reconcile steers or bypasses pods by the state of the fallback to each cluster DNS address and, with deep, repairs steered pods'
	// tables. It returns how many of the pods' network interfaces are in each state.
	Reconcile(ctx context.Context, fallback func(netip.Addr) pods.Fallback, deep bool) (counts map[string]int, err error)
	// DueTrials returns the pod trials to run now, and when the next one is due.
	DueTrials(lease pods.Lease, fallback func(netip.Addr) pods.Fallback) pods.Due
	// RunTrial runs one pod trial, and steers or bypasses the pod by its result. young is the timeout of each query of a pod whose path
	// is new.
	RunTrial(ctx context.Context, t pods.Trial, lease pods.Lease, young time.Duration, fallback func(netip.Addr) pods.Fallback)
	// QueryKubeDNS queries clusterDNS for name's address from steered pods' own addresses. Call it only without a lease: under a lease,
	// the agent gets these queries. sent is false if no query could be sent, for example because no pod is steered.
	QueryKubeDNS(ctx context.Context, clusterDNS netip.Addr, name string) (sent bool, err error)
}

// VerifiedFallbacks is the record on disk of the cluster DNS addresses whose fallback is verified. It outlives the agent's process.
type VerifiedFallbacks interface {
	Read() ([]netip.Addr, error)
	Write(proven []netip.Addr) error
}

// Upstreams are the servers to which the agent forwards misses.
type Upstreams interface {
	Status() []forward.Status
	Faults() []string // what is wrong with the configured upstreams, one line each
	// Check sends queries to the servers and returns nil once one is answered. Otherwise it returns the reason, when ctx ends or earlier. With
	// pressing, it queries all servers at the same time, each several times; if an operator's Corefile decides how to forward, it sends
	// several queries through that Corefile's plugin chain.
	Check(ctx context.Context, clusterDomain string, pressing bool) error
	// LastAnswer returns how long ago an upstream last gave a good answer to a client's query; ok is false if that is not known.
	LastAnswer(clusterDomain string) (ago time.Duration, ok bool)
	// Trouble gets a value when a client's query is not answered as it should be, for example not soon.
	Trouble() <-chan struct{}
}

// Recorder counts what happens, as metrics. All label values come from closed lists, or are addresses of the plan.
type Recorder interface {
	Lease(addr netip.Addr, p steer.Protocol, held bool)
	LeaseGone(addr netip.Addr, p steer.Protocol) // the agent no longer serves this address and protocol
	Probe(result string)                         // a prober.Failure; prober.None for success
	LeaseLost(reason string)                     // why a held lease was lost: a prober.Failure, or lostUpstream
	Repair(kind string)
	Reload(ok bool)
	FallbackVerified(clusterDNS netip.Addr, ok bool)
	FallbackGone(clusterDNS netip.Addr) // the fallback is no longer checked
	Pods(counts map[string]int)
	CanQuery(ok bool) // whether upstreams answer the agent's own queries for names that pods need
}

// Parts are the implementations that Run works with. All fields except Upstreams and Evidence are required.
type Parts struct {
	Log    *slog.Logger
	Server Server
	Link   Link
	Rules  Rules
	// Firewall adds rules that accept DNS packets to and from the agent's addresses, if the host's own filter has policy DROP. It returns what
	// it added. With legacy, it also checks iptables-legacy, for which the kernel sends no events.
	Firewall func(addresses []netip.Addr, legacy bool) (repaired string, err error)
	Lease    Lease
	Prober   Prober
	Pods     Pods
	Verified VerifiedFallbacks
	Uplinks  plan.Uplinks
	Recorder Recorder
	// PartChecked is called when a part (link, rules, firewall, prober) was checked and, if needed, repaired, with the error that prevented
	// it, if any. Only the loop's goroutine calls it.
	PartChecked func(part string, err error)
	// Upstreams show whether misses can be forwarded, and appear in the status. If nil, leases do not depend on upstreams.
	Upstreams Upstreams
	// FallbackLost returns the reason if a failing fallback is lost for good: kube-dns answers the host's own queries, but not those that
	// fall back. It returns "" if kube-dns may only be down. It is not called if the agent may answer the host's own queries.
	FallbackLost func(ctx context.Context, clusterDNS netip.Addr, name string) string
	// Evidence finds pods whose queries do not reach the agent. If nil, the agent does not look for such pods.
	Evidence Evidence
}

// Node is the control loop and its state.
type Node struct {
	Parts
	instance  string
	started   time.Time
	kick      tick.Chan    // requests a round of the loop
	exempt    []netip.Addr // addresses of pods that opted out of interception, as of the last round
	conflicts map[string]*backoff.Conflict
	partial   bool      // the server runs on a predecessor's sockets and lacks addresses of the plan; in Run, only the loop uses this
	pending   retryPlan // a new plan that is not applied yet; only the loop's goroutine uses it
	yields    chan *yield
	ended     chan struct{} // closed when Run has ended
	queryNow  tick.Chan     // wakes up runQueries, which queries the upstreams unless one answered a client within queryIdle
	tryNow    tick.Chan     // makes runTrials start the pod trials that are due
	leaseLock sync.Mutex    // held by grant and conclude, so that grant renews no lease right after conclude withdrew it; locked before mu

	mu sync.Mutex // guards state, which Status reads
	state
}

// state is what the goroutines of a Node share. Its mutex is not held while kernel state is changed.
type state struct {
	now        plan.Plan
	set        *retryPlan // the last arguments of Set, until the loop has read them
	targets    map[target]*targetLease
	verified   map[netip.Addr]bool
	lost       map[netip.Addr]string // fallbacks that are lost for good, each with the reason
	serving    bool
	reloading  bool           // a reload or a takeover is changing link and rules, so changes do not count as repairs
	rulesMade  bool           // the host's rules were made, or found as planned, at least once
	ending     bool           // Run is about to end, so no further successor is accepted
	successors map[string]int // successors that read the same sockets: instance to number of open handover requests
	lastRound  time.Time      // when the loop last waited for work, for Alive
	// inherited is how this agent took the node over from a running one; nil if it did not.
	inherited *Handover
	queries
	troubles
}

// queries are the results of the agent's own queries.
type queries struct {
	paths        map[netip.Addr]lease.Path // cluster DNS address to the state that allows or forbids its leases
	lastQuery    time.Time                 // when the goroutine of these queries last made progress, for Alive
	everAnswered bool                      // a round or check since the start found that an upstream answers
	queryFault   string                    // why no upstream answered in the last round; "" if one did, or before the first round
}

// troubles are the present and past faults.
type troubles struct {
	faults  map[string]string // the present faults: part of the agent's work to error text
	fault   *Fault            // the last fault or lost lease, also if it is over, without failed fallback checks; nil if there was none
	repair  string            // time, part and description of the last repair
	repairs map[string]int    // part (link, rules, firewall, prober) to number of repairs since the start
}

// New returns a node whose agent answers probes with instance, and whose first plan is first. Run starts it.
func New(instance string, first plan.Plan, parts Parts) *Node {
	return &Node{Parts: parts, instance: instance, started: time.Now(), kick: tick.New(),
		yields: make(chan *yield), ended: make(chan struct{}),
		queryNow: tick.New(), tryNow: tick.New(), conflicts: map[string]*backoff.Conflict{},
		state: state{now: first, successors: map[string]int{}, targets: map[target]*targetLease{}, verified: map[netip.Addr]bool{},
			lost:    map[netip.Addr]string{},
			queries: queries{paths: map[netip.Addr]lease.Path{}}, troubles: troubles{faults: map[string]string{}, repairs: map[string]int{}}}}
}

// Run reconciles the node with its plan until ctx ends or a successor takes the node over (Yield), and then stops the server. It withdraws
// the leases first, unless a successor takes over, even one whose handover was under way when ctx ended. It returns nil after an orderly
// stop. Call it once.
func (n *Node) Run(ctx context.Context) error {
	defer close(n.ended)
	n.readVerified()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	changes, err := n.watch(watching)
	if err != nil {
		return err
	}
	defer func() {
		unwatch()
		tick.Drain(changes)
	}()
	events := changes // nil once the watches have ended
	// The probes outlive ctx, because a handover that is under way when ctx ends still needs them.
	lasting := context.WithoutCancel(ctx)
	l := &loop{node: n, probes: newGroup(lasting), checks: n.startChecks(lasting),
		slow:  time.NewTicker(cmp.Or(n.plan().Terms.Check, slowCheck)),
		retry: time.NewTimer(0), backoff: retryFirst, full: true, ok: true}
	defer l.close()
	for {
		n.noteProgress(&n.lastRound)
		select {
		case <-ctx.Done():
			if y := n.lastYield(); y != nil && l.yield(y) {
				return n.leave()
			}
			l.stop()
			return n.stop()
		case y := <-n.yields:
			if l.yield(y) {
				return n.leave()
			}
			l.probes = newGroup(lasting)
			for _, t := range n.targetsWhere(anyLease) {
				l.probes.start(t.String(), func(ctx context.Context) { n.probeTarget(ctx, t) })
			}
		case _, ok := <-events:
			if !ok { // the watches end with ctx
				events = nil
				continue
			}
		case <-n.kick:
		case <-l.slow.C:
			l.full = true
		case <-l.retry.C:
		case <-n.pending.again:
			n.pending.due = true
		}
		l.round(ctx)
		tick.Pause(ctx, minGap)
	}
}

// startChecks starts the goroutines that run alongside the loop: fallback checks, pod trials, queries to the upstreams, and the search for
// clients whose queries are dropped.
func (n *Node) startChecks(ctx context.Context) *group {
	g := newGroup(ctx)
	g.start("prove", n.checkFallbacks)
	g.start("pods", n.runTrials)
	if n.Upstreams != nil {
		g.start("reach", n.runQueries)
	}
	if n.Evidence != nil {
		g.start("evidence", func(ctx context.Context) { n.Evidence.Run(ctx, n) })
	}
	return g
}

// loop is the state that Run keeps between two rounds.
type loop struct {
	node           *Node
	probes, checks *group
	slow           *time.Ticker
	retry          *time.Timer
	backoff        time.Duration // time from a failed round to its retry
	full           bool          // the next round is a full check
	ok             bool          // the last round succeeded
}

// round runs one round of the loop. It sets the retry timer if the round failed.
func (l *loop) round(ctx context.Context) {
	n := l.node
	if n.planDue() {
		n.reload(ctx, l.probes)
	}
	before := l.ok
	l.ok = n.reconcile(ctx, l.full, l.probes)
	l.full = false
	if !l.ok {
		l.retry.Reset(l.backoff)
		l.backoff = min(2*l.backoff, retryLast)
		return
	}
	n.endReload()
	l.backoff = retryFirst
	l.retry.Stop()
	if !before && n.pending.again != nil { // what made the pending plan fail may be over
		n.pending.due = true
		n.kick.Send()
	}
}

// yield hands the node over to a successor, and reports whether the successor has taken it.
func (l *loop) yield(y *yield) bool {
	if !l.node.yield(y, l.probes) {
		return false
	}
	l.checks.stop() // they need the prober, which is closed next
	return true
}

func (l *loop) stop() {
	l.checks.stop()
	l.probes.stop()
}

func (l *loop) close() {
	l.stop()
	l.slow.Stop()
	l.retry.Stop()
}

// watch merges the events of link, rules and pod files into one channel.
func (n *Node) watch(ctx context.Context) (<-chan struct{}, error) {
	all := []<-chan struct{}{n.watchPods(ctx)}
	for _, w := range []struct {
		name  string
		watch func(context.Context) (<-chan struct{}, error)
	}{{"links", n.Link.Watch}, {"rules", n.Rules.Watch}} {
		ticks, err := w.watch(ctx)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.name, err)
		}
		all = append(all, ticks)
	}
	return tick.Join(all...), nil
}

// stop withdraws the leases, then stops the server, which first answers the queries in flight, and then the prober. Link and host rules
// stay.
func (n *Node) stop() error {
	var errs []error
	for _, t := range n.targetsWhere(anyLease) {
		if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
			errs = append(errs, err)
		}
		n.Recorder.Lease(t.Address, t.Protocol, false)
	}
	errs = append(errs, n.Server.Stop())
	errs = append(errs, n.Prober.Close())
	n.Log.Info("stopped; kube-dns answers pods; kernel hits, if any, end within 30 s")
	return errors.Join(errs...)
}

func (n *Node) plan() plan.Plan {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

func (n *Node) isServing() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.serving
}
