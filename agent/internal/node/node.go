// Package node runs the cache of one node: link, addresses, switch, server, prober and lease, in the order that keeps the
// invariant (a packet reaches our socket only while that socket has just answered a probe that came the way pods come).
//
// It owns order, retry and the decision when a lease is renewed or withdrawn, and nothing else: each part is behind a
// small interface. One goroutine changes kernel state; the probes, one goroutine a target, only renew leases. At stop the
// leases are withdrawn and the server ends; the link and the switch stay, since pods keep sending to their addresses.
// It reads no configuration: the plan of one comes to it by New and Set.
//
// Failure policy: the loop tries what failed again for ever, with a bounded back-off, and reports it once; without a server there is
// no lease, so pods reach kube-dns meanwhile. Only a watch that cannot be opened at the start ends Run early.
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
	slowCheck  = 30 * time.Second       // everything is looked at, whether or not an event said so
	leastGap   = 50 * time.Millisecond  // between two rounds, so that a storm of events costs little
	retryFirst = 250 * time.Millisecond // after a round that failed
	retryLast  = 10 * time.Second
)

// Server answers questions. Start either serves all addresses or none; Restart that fails leaves the old one serving.
type Server interface {
	Start(ctx context.Context, cfg server.Config) error
	Restart(ctx context.Context, cfg server.Config) error
	Stop() error
	// Pause stops reading, until Resume or Stop; what comes waits in the sockets.
	Pause()
	Resume()
	// Done is closed when no socket is served any more, whatever the reason.
	Done() <-chan struct{}
}

// Link keeps the interface and its addresses. Ensure returns what it had to mend, in words, or "".
type Link interface {
	Ensure(name string, addresses []netip.Addr) (mended string, err error)
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Rules is the host table. Repair makes it as described and returns the drift that it found.
type Rules interface {
	Repair(rs steer.Ruleset) (drift []string, err error)
	// Unexempt takes back what Repair left out of interception: it only ever adds, since the plugin does too.
	Unexempt(addrs ...netip.Addr) error
	Watch(ctx context.Context) (<-chan struct{}, error)
}

// Firewall keeps our addresses accepted where the host's own filter drops by policy. Ensure returns what it had to add;
// legacy asks it to look also where the kernel tells nobody of changes, which costs a few processes.
type Firewall interface {
	Ensure(addresses []netip.Addr, legacy bool) (mended string, err error)
}

// Lease sends the lease datagrams.
type Lease interface {
	Renew(addr netip.Addr, p steer.Protocol) error
	Withdraw(addr netip.Addr, p steer.Protocol) error
}

// Prober asks the way pods ask.
type Prober interface {
	Reconfigure(redirects []steer.Redirect, locals []netip.Addr) error
	Repair() (mended string, err error)
	Probe(ctx context.Context, target netip.Addr, p steer.Protocol) prober.Result
	Prove(ctx context.Context, clusterDNS netip.Addr, name string) error
	Close() error
}

// Pods is the registry of pods on this node.
type Pods interface {
	Watch(ctx context.Context) (<-chan struct{}, error)
	plan.Pods
	// Reconcile steers and bypasses pods by what the fallbacks are, and repairs steered pods' tables. It returns how many pods are in each
	// state.
	Reconcile(ctx context.Context, fallback func(netip.Addr) pods.Fallback, deep bool) (counts map[string]int, err error)
	// RunTrials runs the pod trials that are due. changed: pods may be steered now.
	RunTrials(ctx context.Context, lease pods.Lease) (changed bool, err error)
	// QueryKubeDNS queries clusterDNS for name's address from a steered pod's own address, while no lease catches that; false: there is no
	// such pod.
	QueryKubeDNS(ctx context.Context, clusterDNS netip.Addr, name string) (sent bool, err error)
}

// Proofs is the record of cluster DNS addresses whose fallback is proven; it outlives the agent and the node's reboot.
type Proofs interface {
	Read() ([]netip.Addr, error)
	Write(proven []netip.Addr) error
}

// World is what surrounds the agent on its node.
type World interface {
	// Lost says why a fallback that fails is lost for good: nothing on this host translates the cluster DNS address any more, or
	// kube-dns answers the host while it does not answer what is given back. "" where it may only be away.
	Lost(ctx context.Context, clusterDNS netip.Addr, name string) string
}

// Upstreams answer for the cluster's names, as the server asks them on a miss.
type Upstreams interface {
	Status() []forward.Status
	Faults() []string // what somebody should repair, one line each
	// Ask returns nil once a real question was answered, and otherwise why none was, at the latest when ctx ends. Pressing asks
	// everybody in every way, again and again.
	Ask(ctx context.Context, clusterDomain string, pressing bool) error
	// Heard is how long ago a client's question was last answered by one of them; false: that is not known.
	Heard(clusterDomain string) (ago time.Duration, ok bool)
	// Trouble gets a value when a client's question is not answered soon.
	Trouble() <-chan struct{}
}

// Recorder counts what happens. Its labels come from closed lists.
type Recorder interface {
	Lease(addr netip.Addr, p steer.Protocol, held bool)
	LeaseGone(addr netip.Addr, p steer.Protocol) // none is wanted there any more, held or not
	Probe(result prober.Failure)                 // prober.None for success
	Lost(reason prober.Failure)                  // a lease that was held
	// Kept tells that a part was looked at and put right where it was not, or why it could not be: link, rules, firewall, prober; and
	// of the server that it was started. The loop goroutine calls it.
	Kept(part string, err error)
	Repair(kind string)
	Reload(ok bool)
	Proven(clusterDNS netip.Addr, ok bool)
	FallbackGone(clusterDNS netip.Addr) // none is wanted to it any more
	Pods(counts map[string]int)
	CanAsk(ok bool) // what pods need asked
}

// Parts is everything that Run works with. All fields but Upstreams, World and Evidence are needed.
type Parts struct {
	Log      *slog.Logger
	Server   Server
	Link     Link
	Rules    Rules
	Firewall Firewall
	Lease    Lease
	Prober   Prober
	Pods     Pods
	Proofs   Proofs
	Uplinks  plan.Uplinks
	Recorder Recorder
	// Upstreams tell whether pods' questions can be asked on, and are shown in the status; nil: leases do not depend on them.
	Upstreams Upstreams
	// World tells a fallback that is lost for good from a kube-dns that is away; nil never does.
	World World
	// Evidence finds pods whose questions do not arrive; nil looks for none.
	Evidence Evidence
}

// Node is the running loop.
type Node struct {
	Parts
	instance string
	started  time.Time
	kick     tick.Chan    // asks for a round of the loop
	mended   broadcast    // asks each target for a probe at once
	exempt   []netip.Addr // the pods that opted out, at the last round
	flapping map[string]*backoff.Flapping
	partial  bool  // the inherited server lacks addresses; the loop's alone once it runs
	owed     retry // the plan to take over; the loop's alone
	yields   chan *yield
	ended    chan struct{} // closed when Run has ended
	reask    tick.Chan     // asks for a query of the agent's own
	granting sync.Mutex    // held while a lease is renewed, and while leases are withdrawn; taken before mu

	mu sync.Mutex // guards state, which Status reads
	state
}

// state is what the loop, the probes and Status share. Effects are applied without its lock.
type state struct {
	now     plan.Plan
	set     *plan.Plan // what Set was given last, until the loop has seen it
	changed bool       // whether the configuration differs, of all that Set was given since
	targets map[target]*targetLease
	proven  map[netip.Addr]bool
	lost    map[netip.Addr]string // fallbacks that are lost for good, and why
	serving bool
	moving  bool           // a reload is changing link and rules
	ruled   bool           // the host table was made or found right once
	ending  bool           // Run is to end
	beside  map[string]int // instances that read our sockets, too
	rounded time.Time      // the loop's last round
	// inherited is how the node came to us; nil if it was free.
	inherited *Handover
	queries
	troubles
}

// queries is what the agent's own queries showed.
type queries struct {
	ways     map[netip.Addr]lease.Way // by cluster DNS address
	reaching time.Time                // the last query was begun
	reached  bool                     // one was answered since the start
	unasked  string                   // why none was, in the last round; "" if one was
}

// troubles are what is wrong, and what was.
type troubles struct {
	faults  map[string]string // by part: what is wrong now
	fault   *Fault            // the last thing that went wrong
	repair  string            // the last repair
	repairs map[string]int    // by kind, since the start
}

// New prepares a node that answers probes as instance and begins by the first plan.
func New(instance string, first plan.Plan, parts Parts) *Node {
	return &Node{Parts: parts, instance: instance, started: time.Now(), kick: tick.New(), yields: make(chan *yield), ended: make(chan struct{}),
		reask: tick.New(), flapping: map[string]*backoff.Flapping{},
		state: state{now: first, beside: map[string]int{}, targets: map[target]*targetLease{}, proven: map[netip.Addr]bool{}, lost: map[netip.Addr]string{},
			queries: queries{ways: map[netip.Addr]lease.Way{}}, troubles: troubles{faults: map[string]string{}, repairs: map[string]int{}}}}
}

// Run keeps the node until ctx ends, then withdraws and stops, or until the node is handed over (Yield). It returns nil after
// an orderly stop. It is called once.
func (n *Node) Run(ctx context.Context) error {
	defer close(n.ended)
	n.readProofs()
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
	events := changes // nil once the watches ended
	// A hand-over that is under way outlives ctx, and its probes with it.
	lasting := context.WithoutCancel(ctx)
	l := &loop{node: n, probes: newGroup(lasting), checks: n.startChecks(lasting), slow: time.NewTicker(cmp.Or(n.plan().Terms.Check, slowCheck)),
		retry: time.NewTimer(0), backoff: retryFirst, deep: true, well: true}
	defer l.close()
	for {
		n.live(&n.rounded)
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
			n.tendAll(l.probes)
		case _, ok := <-events:
			if !ok { // ctx ends
				events = nil
				continue
			}
		case <-n.kick:
		case <-l.slow.C:
			l.deep = true
		case <-l.retry.C:
		}
		l.round(ctx)
		tick.Pause(ctx, leastGap)
	}
}

// startChecks starts what goes on next to the loop.
func (n *Node) startChecks(ctx context.Context) *group {
	g := newGroup(ctx)
	g.start("prove", n.prove)
	g.start("pods", n.runTrials)
	if n.Upstreams != nil {
		g.start("reach", n.keepReach)
	}
	if n.Evidence != nil {
		g.start("evidence", func(ctx context.Context) { n.Evidence.Run(ctx, n) })
	}
	return g
}

// loop is what Run keeps between two rounds.
type loop struct {
	node           *Node
	probes, checks *group
	slow           *time.Ticker
	retry          *time.Timer
	backoff        time.Duration // before the next retry
	deep           bool          // the next round looks at everything
	well           bool          // the last round found or made everything right
}

// round is one round of the loop, and plans the next.
func (l *loop) round(ctx context.Context) {
	n := l.node
	if next, due := n.dueNow(); due {
		n.reload(ctx, next, l.probes)
	}
	before := l.well
	l.well = n.round(ctx, l.deep, l.probes)
	l.deep = false
	if !l.well {
		l.retry.Reset(l.backoff)
		l.backoff = min(2*l.backoff, retryLast)
		return
	}
	n.moved()
	l.backoff = retryFirst
	l.retry.Stop()
	if !before {
		n.owed.hasten(time.Now()) // what was in its way may be gone
	}
	if wait, ok := n.owed.until(time.Now()); ok {
		l.retry.Reset(wait)
	}
}

// yield hands the node over, and reports whether it is gone.
func (l *loop) yield(y *yield) bool {
	if !l.node.yield(y, l.probes) {
		return false
	}
	l.checks.stop() // which have no prober from here on
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

// watch joins the events of link, rules and pods into one channel.
func (n *Node) watch(ctx context.Context) (<-chan struct{}, error) {
	var all []<-chan struct{}
	for _, w := range []struct {
		name  string
		watch func(context.Context) (<-chan struct{}, error)
	}{{"links", n.Link.Watch}, {"rules", n.Rules.Watch}, {"pods", n.Pods.Watch}} {
		ticks, err := w.watch(ctx)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.name, err)
		}
		all = append(all, ticks)
	}
	return tick.Join(all...), nil
}

// stop is the order of stop: leases, what is in flight, server, prober. Link and switch stay.
func (n *Node) stop() error {
	var errs []error
	for _, t := range n.targetsWhere(anyLease) {
		if err := n.Lease.Withdraw(t.Address, t.Protocol); err != nil && !errors.Is(err, steer.ErrNoSwitch) {
			errs = append(errs, err)
		}
		n.Recorder.Lease(t.Address, t.Protocol, false)
	}
	errs = append(errs, n.Server.Stop()) // reads first what the switch had delivered
	errs = append(errs, n.Prober.Close())
	n.Log.Info("stopped, pods are answered by kube-dns")
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
