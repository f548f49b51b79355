package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// Times of a hand-over. Both bounds of the proof are well within a lease's lifetime, and within what a socket's buffer holds
// of a busy node's questions, so that a successor that stands still costs neither the lease nor, mostly, a question.
const (
	proveOnce  = 150 * time.Millisecond
	proveMost  = 500 * time.Millisecond
	proveAgain = 10 * time.Millisecond
	yieldMost  = 5 * time.Second // until the loop has time for it
	lastYield  = 5 * time.Second // for a hand-over that is under way when the agent is told to end
	lastLook   = 20 * time.Millisecond
)

// ErrEnding says that the node is ending and takes part in no hand-over any more.
var ErrEnding = errors.New("it is ending")

// Handover is how a node came to this agent from another.
type Handover struct {
	From string    `json:"from"`
	At   time.Time `json:"at"`
	Took string    `json:"took"`
}

// yield is one successor's wish for the node.
type yield struct {
	instance  string
	addresses []netip.Addr
	proven    chan error
	taken     chan bool
}

// Inherit tells the node that its server serves addresses already, on a predecessor's sockets; none means that the server was
// not started. Call it before Run.
func (n *Node) Inherit(h Handover, addresses []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inherited = &h
	for _, f := range n.now.Fallbacks() {
		n.ways[f.ClusterDNS] = lease.Serve(time.Now()) // as the predecessor's, until its own queries show more
	}
	n.moving = true // until the first round has gone well: what differs from the predecessor's is no fault
	if len(addresses) == 0 {
		return
	}
	n.serving = true
	n.partial = slices.ContainsFunc(n.now.Addresses(), func(a netip.Addr) bool { return !slices.Contains(addresses, a) })
	n.follow(n.Server.Done())
}

// Beside counts probes that instance answers as proof, since it reads the same sockets, until the returned function is called.
func (n *Node) Beside(instance string) (end func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ending {
		return nil, ErrEnding
	}
	n.beside[instance]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.beside[instance]--; n.beside[instance] == 0 {
			delete(n.beside, instance)
		}
	}, nil
}

// Yield stops reading and returns nil once instance, which reads the same sockets, is proven to answer wherever this agent
// holds a lease. Then decide must be called: with true Run ends, without withdrawing anything; with false this agent reads
// again, as it does after an error. Leases of addresses that the successor does not serve are withdrawn first.
func (n *Node) Yield(ctx context.Context, instance string, addresses []netip.Addr) (decide func(taken bool), err error) {
	y := &yield{instance: instance, addresses: addresses, proven: make(chan error, 1), taken: make(chan bool, 1)}
	ctx, cancel := context.WithTimeout(ctx, yieldMost)
	defer cancel()
	select {
	case n.yields <- y:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the loop: %w", ctx.Err())
	case <-n.ended:
		return nil, ErrEnding
	}
	if err := <-y.proven; err != nil {
		return nil, err
	}
	return func(taken bool) { y.taken <- taken }, nil
}

// yield is Yield's part in the loop. It reports whether the node is the successor's.
func (n *Node) yield(y *yield, probes *group) bool {
	n.withdrawUnserved(y.addresses, probes)
	probes.stop()
	n.Server.Pause()
	err := n.proveSuccessor(y.instance)
	y.proven <- err
	if err == nil {
		if <-y.taken {
			return true
		}
		err = errors.New("the successor did not take over")
	}
	n.Server.Resume()
	n.Log.Warn("not handed over, this agent goes on", "err", err)
	return false
}

// withdrawUnserved ends the leases of addresses that the successor does not serve, and reads what came under them.
func (n *Node) withdrawUnserved(served []netip.Addr, probes *group) {
	withdrawn := false
	for _, t := range n.targetsWhere(anyLease) {
		if !slices.Contains(served, t.Address) {
			n.withdraw(t, probes)
			withdrawn = true
		}
	}
	if withdrawn {
		tick.Pause(context.Background(), proveOnce)
	}
}

// proveSuccessor asks until every target that holds a lease was answered by the successor, and renews the leases.
func (n *Node) proveSuccessor(instance string) error {
	ctx, cancel := context.WithTimeout(context.Background(), proveMost)
	defer cancel()
	targets := n.targetsWhere(func(l *targetLease) bool { return l.held })
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = n.proveAt(ctx, t, instance) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (n *Node) proveAt(ctx context.Context, t target, instance string) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, proveOnce)
		r := n.Prober.Probe(attempt, t.Asked, t.Protocol)
		cancel()
		err := r.Err
		switch {
		case err == nil && r.Instance == instance:
			// Without a switch there is nothing to renew, and its repair is the successor's.
			if err = n.Lease.Renew(t.Address, t.Protocol); err == nil || errors.Is(err, steer.ErrNoSwitch) {
				return nil
			}
		case err == nil:
			err = fmt.Errorf("%s answered", r.Instance) // what this agent had begun to read
		}
		if ctx.Err() != nil || !tick.Pause(ctx, proveAgain) {
			return fmt.Errorf("the successor does not answer at %s: %w", t, err)
		}
	}
}

// lastYield is what the node waits for before it stops: a hand-over that is under way. nil: there is none.
func (n *Node) lastYield() *yield {
	n.mu.Lock()
	n.ending = true
	n.mu.Unlock()
	limit := time.NewTimer(lastYield)
	defer limit.Stop()
	look := time.NewTicker(lastLook)
	defer look.Stop()
	for {
		n.mu.Lock()
		alone := len(n.beside) == 0
		n.mu.Unlock()
		if alone {
			return nil
		}
		select {
		case y := <-n.yields:
			return y
		case <-limit.C:
			return nil
		case <-look.C:
		}
	}
}

// leave is the end of an agent whose node is a successor's: it gives up the prober's place, which the successor waits for,
// and ends its connections. Leases, link and switch are the successor's.
func (n *Node) leave() error {
	err := n.Prober.Close()
	for _, t := range n.targetsWhere(anyLease) {
		n.Recorder.Lease(t.Address, t.Protocol, false)
	}
	n.Log.Info("handed over, open connections are brought to an end")
	err = errors.Join(err, n.Server.Stop())
	n.Log.Info("stopped, the successor answers")
	return err
}
