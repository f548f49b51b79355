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

// Times of a handover. Both limits of the check of the successor are well within a lease's lifetime, and within the time in which a busy
// node's queries fill a socket's buffer, so that a successor that hangs costs neither the lease nor, mostly, a query.
const (
	successorTimeout = 150 * time.Millisecond
	successorMax     = 500 * time.Millisecond
	successorAgain   = 10 * time.Millisecond
	yieldMax         = 5 * time.Second // until the loop starts the handover
	lastYield        = 5 * time.Second // for a handover that is under way when the agent has to end
	yieldPoll        = 20 * time.Millisecond
)

// ErrEnding means that the node is ending and starts no handover any more.
var ErrEnding = errors.New("it is ending")

// Handover describes how this agent got the node from another.
type Handover struct {
	From string    `json:"from"`
	At   time.Time `json:"at"`
	Took string    `json:"took"`
}

// yield is one successor's request for the node.
type yield struct {
	instance  string
	addresses []netip.Addr
	checked   chan error
	taken     chan bool
}

// Inherit records that the server already serves addresses on a predecessor's sockets; with no addresses, the server is not started yet.
// Call it before Run.
func (n *Node) Inherit(h Handover, addresses []netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inherited = &h
	for _, f := range n.now.Fallbacks() {
		n.paths[f.ClusterDNS] = lease.Serve(time.Now()) // as the predecessor's, until this agent's own queries show more
	}
	n.reloading = true // until the first round succeeds: a difference from the predecessor's rules is no fault
	if len(addresses) == 0 {
		return
	}
	n.serving = true
	n.partial = slices.ContainsFunc(n.now.Addresses(), func(a netip.Addr) bool { return !slices.Contains(addresses, a) })
	n.follow(n.Server.Done())
}

// AcceptSuccessor makes probes count the answers of instance as this agent's own, because it reads the same sockets, until the returned
// function is called.
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

// Yield stops reading and returns nil once probes show that instance, which reads the same sockets, answers wherever this agent has a
// lease. Then decide must be called: with true, Run ends without withdrawing a lease; with false, this agent reads again, as it does after
// an error. Leases of addresses that the successor does not serve are withdrawn first.
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

// yield is Yield's part in the loop. It reports whether the successor has the node.
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
	n.Log.Warn("handover failed; this agent goes on", "err", err)
	return false
}

// withdrawUnserved ends the leases of addresses that the successor does not serve, and lets the server answer the queries that have arrived
// there.
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

// checkSuccessor probes until the successor has answered at every target with a lease, and renews the leases.
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
			// Without a switch there is nothing to renew. The successor repairs it.
			if err = n.Lease.Renew(t.Address, t.Protocol); err == nil || errors.Is(err, steer.ErrNoSwitch) {
				return nil
			}
		case err == nil:
			err = fmt.Errorf("%s answered", r.Instance) // this agent had read the probe before it stopped reading
		}
		if ctx.Err() != nil || !tick.Pause(ctx, successorAgain) {
			return fmt.Errorf("the successor does not answer at %s: %w", t, err)
		}
	}
}

// lastYield waits for a handover that is under way before the node stops, and returns it; nil if there is none.
func (n *Node) lastYield() *yield {
	n.mu.Lock()
	n.ending = true
	n.mu.Unlock()
	limit := time.NewTimer(lastYield)
	defer limit.Stop()
	look := time.NewTicker(yieldPoll)
	defer look.Stop()
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
		case <-limit.C:
			return nil
		case <-look.C:
		}
	}
}

// leave ends an agent after its handover: it releases the prober's lock, which the successor waits for, and ends its connections. Leases,
// link and switch now belong to the successor.
func (n *Node) leave() error {
	err := n.Prober.Close()
	for _, t := range n.targetsWhere(anyLease) {
		n.Recorder.Lease(t.Address, t.Protocol, false)
	}
	n.Log.Info("the successor has taken over; this agent closes its connections")
	err = errors.Join(err, n.Server.Stop())
	n.Log.Info("stopped; the successor answers")
	return err
}
