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

// Times of a handover. The successor's check is shorter than a lease's default lifetime (0.8 s), and than the time in which a busy node's
// queries fill a socket's buffer. So if a successor hangs, leases and queries are rarely lost.
const (
	successorTimeout = 150 * time.Millisecond // of one probe of the successor
	successorMax     = 500 * time.Millisecond // of the whole check
	successorAgain   = 10 * time.Millisecond  // between two probes of one target
	yieldMax         = 5 * time.Second        // how long a successor's request waits for the loop
	lastYield        = 5 * time.Second        // how long an agent that has to end waits for a handover under way
	yieldPoll        = 20 * time.Millisecond  // how often lastYield checks whether that handover is over
)

// ErrEnding means that this agent is stopping, so it no longer accepts a successor.
var ErrEnding = errors.New("it is ending")

// Handover describes how this agent took the node over from another one.
type Handover struct {
	From string    `json:"from"`
	At   time.Time `json:"at"`
	Took string    `json:"took"`
}

// yield is one successor's request for the node.
type yield struct {
	instance  string
	addresses []netip.Addr
	checked   chan error // gets nil once the successor has answered all probes, else the reason
	taken     chan bool  // gets the argument of Yield's decide
}

// Inherit records that this agent takes the node over from a predecessor, and that its server already serves addresses on the
// predecessor's sockets. If addresses is empty, the server is not started yet. Call it before Run.
func (n *Node) Inherit(h Handover, addresses []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inherited = &h
	for _, f := range n.now.Fallbacks() {
		// The predecessor's leases stay in force until this agent's own queries show otherwise.
		n.paths[f.ClusterDNS] = lease.Serve(time.Now())
	}
	n.reloading = true // until the first round succeeds, so that a difference from the predecessor's rules does not count as a repair
	if len(addresses) == 0 {
		return
	}
	n.serving = true
	n.partial = slices.ContainsFunc(n.now.Addresses(), func(a netip.Addr) bool { return !slices.Contains(addresses, a) })
	n.follow(n.Server.Done())
}

// AcceptSuccessor counts probe answers by the agent named instance as this agent's own until end is called, because the two agents read
// the same sockets during a handover.
func (n *Node) AcceptSuccessor(instance string) (end func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ending {
		return nil, ErrEnding
	}
	n.successors[instance]++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.successors[instance]--; n.successors[instance] == 0 {
			delete(n.successors, instance)
		}
	}, nil
}

// Yield hands the node over to the successor named instance, which reads the same sockets. It stops this agent's reading and returns nil
// once the successor has answered a probe at every target that has a lease. Then the caller must call decide: with true, Run ends and
// leaves the leases to the successor; with false, as after an error, this agent reads again. Leases of addresses that the successor does
// not serve are withdrawn first.
func (n *Node) Yield(ctx context.Context, instance string, addresses []netip.Addr) (decide func(taken bool), err error) {
	y := &yield{instance: instance, addresses: addresses, checked: make(chan error, 1), taken: make(chan bool, 1)}
	ctx, cancel := context.WithTimeout(ctx, yieldMax)
	defer cancel()
	select {
	case n.yields <- y:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the loop: %w", ctx.Err())
	case <-n.ended:
		return nil, ErrEnding
	}
	if err := <-y.checked; err != nil {
		return nil, err
	}
	return func(taken bool) { y.taken <- taken }, nil
}

// yield runs Yield's request in the loop's goroutine, and reports whether the successor has taken the node over.
func (n *Node) yield(y *yield, probes *group) bool {
	n.withdrawUnserved(y.addresses, probes)
	probes.stop()
	n.Server.Pause()
	err := n.checkSuccessor(y.instance)
	y.checked <- err
	if err == nil {
		if <-y.taken {
			return true
		}
		err = errors.New("the successor did not take over")
	}
	n.Server.Resume()
	n.Log.Warn("handover failed; this agent reads queries again", "err", err)
	return false
}

// withdrawUnserved withdraws the leases of addresses that the successor does not serve, and gives the server time to answer the queries
// that have already arrived there.
func (n *Node) withdrawUnserved(served []netip.Addr, probes *group) {
	withdrawn := false
	for _, t := range n.targetsWhere(anyLease) {
		if !slices.Contains(served, t.Address) {
			n.withdraw(t, probes)
			withdrawn = true
		}
	}
	if withdrawn {
		tick.Pause(context.Background(), successorTimeout)
	}
}

// checkSuccessor probes every target that has a lease until the successor has answered there, and renews its lease. It returns an error
// if that does not succeed at every target within successorMax.
func (n *Node) checkSuccessor(instance string) error {
	ctx, cancel := context.WithTimeout(context.Background(), successorMax)
	defer cancel()
	targets := n.targetsWhere(func(l *targetLease) bool { return l.held })
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = n.checkSuccessorAt(ctx, t, instance) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (n *Node) checkSuccessorAt(ctx context.Context, t target, instance string) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, successorTimeout)
		r := n.Prober.Probe(attempt, t.Queried, t.Protocol)
		cancel()
		err := r.Err
		switch {
		case err == nil && r.Instance == instance:
			// Without the host table there is no lease to renew; the successor repairs the table. A lease that conclude has withdrawn
			// meanwhile stays withdrawn, which is no failure of the successor.
			if _, err = n.grant(t); err == nil || errors.Is(err, steer.ErrNoSwitch) {
				return nil
			}
		case err == nil:
			// Not the successor: usually this agent, which was in a read when it stopped reading. Try again.
			err = fmt.Errorf("%s answered", r.Instance)
		}
		if ctx.Err() != nil || !tick.Pause(ctx, successorAgain) {
			return fmt.Errorf("the successor fails its check at %s: %w", t, err)
		}
	}
}

// lastYield makes this agent refuse new successors. If a handover is under way, it waits up to 5 s for the successor's request and returns
// it; otherwise, or if none comes, nil.
func (n *Node) lastYield() *yield {
	n.mu.Lock()
	n.ending = true
	n.mu.Unlock()
	limit, look := time.After(lastYield), time.Tick(yieldPoll)
	for {
		n.mu.Lock()
		alone := len(n.successors) == 0
		n.mu.Unlock()
		if alone {
			return nil
		}
		select {
		case y := <-n.yields:
			return y
		case <-limit:
			return nil
		case <-look:
		}
	}
}

// leave ends this agent after its handover. It releases the prober's lock, which the successor waits for, and stops the server. Leases,
// link and switch stay, because they now belong to the successor.
func (n *Node) leave() error {
	err := n.Prober.Close()
	for _, t := range n.targetsWhere(anyLease) {
		n.Recorder.Lease(t.Address, t.Protocol, false)
	}
	n.Log.Info("the successor has taken the node over; this agent closes its TCP connections and ends")
	err = errors.Join(err, n.Server.Stop())
	n.Log.Info("stopped; the successor answers pods")
	return err
}
