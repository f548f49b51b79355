// Package evidence finds pods whose queries the switch delivers and the host's own filters drop, for example an egress policy that allows
// only kube-dns, or a firewall zone. The switch bypasses them while that lasts: kube-dns answers.
//
// The kernel keeps the evidence (see pkg/steer/nft): which clients sent a query, before the filters, and whose query passed them. This
// package reads it, reports it to podstate, and sends the control packets. It never bypasses a client while the prober's own path is in
// doubt, writes no rule, and costs a query nothing.
//
// On failure: evidence that cannot be read or used is logged once and costs only itself; the switch goes on delivering.
package evidence

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// Limits of what reading the notes may cost: if a client sends from many addresses that are all dropped, the next read waits for share
// times the length of the last, and for slowest at most, because a starved process takes long for little.
const (
	share   = 20
	slowest = time.Second
)

const maxTrials = 16 // at a time

// Switch is the evidence in the host table. Only the goroutine of Run uses it.
type Switch interface {
	Unheard() (map[steer.Protocol]int64, error)
	Notes() (steer.Notes, error)
	Suspects() ([]steer.Suspect, error)
}

// Bypasser sends the control packets.
type Bypasser interface {
	Hold(c steer.Client, step int) error
}

// Pods are the pods of the node.
type Pods interface {
	// PodOf names the pod of an address, "" if there is none.
	PodOf(netip.Addr) string
	// TryClient tries the path of a client that the switch bypasses, from its pod's netns; false: it is no known pod's.
	TryClient(ctx context.Context, c steer.Client) (known bool, err error)
}

// Node is the loop of the node.
type Node interface {
	// Pace is the time between two reads, and the least time between two queries that count.
	Pace() (every, gap time.Duration)
	// LeaseOf returns the lease under which a client's queries are delivered; false if it is not held.
	LeaseOf(c steer.Client) (Lease, bool)
}

// Bypassed is a client that kube-dns answers because its queries do not reach the agent.
type Bypassed struct {
	Pod       string     `json:"pod,omitempty"` // namespace/name, where the plugin knows the source
	Source    netip.Addr `json:"source"`
	Address   netip.Addr `json:"address"`
	Protocol  string     `json:"protocol"`
	Since     time.Time  `json:"since"`
	NextTrial time.Time  `json:"nextTrial"` // when its path is tried next
}

// Evidence watches the switch's evidence. All methods may be called at any time.
type Evidence struct {
	log      *slog.Logger
	kernel   Switch
	bypasser Bypasser
	pods     Pods
	counts   *counts
	trials   sync.WaitGroup
	slots    chan struct{} // of the trials

	before     map[steer.Protocol]int64 // dropped queries at the last read
	stale      bool                     // the notes have to be read next time
	next       time.Time                // no read of the notes before
	lastLogged string                   // the error

	mu    sync.Mutex // guards judge.held
	judge *judge
}

// New collects evidence of the pods at a switch, and bypasses by it.
func New(log *slog.Logger, kernel Switch, bypasser Bypasser, pods Pods) *Evidence {
	return &Evidence{log: log, kernel: kernel, bypasser: bypasser, pods: pods, counts: newCounts(), slots: make(chan struct{}, maxTrials),
		judge: newJudge()}
}

// Run reads the evidence at intervals until ctx ends. Bypasses outlive it: they expire by themselves.
func (e *Evidence) Run(ctx context.Context, n Node) {
	defer e.trials.Wait()
	for {
		every, gap := n.Pace()
		// On a grid of time, with the probes, because waking up costs more than a read does.
		if !tick.Grid(ctx, every) {
			return
		}
		e.logError(e.read(gap, n.LeaseOf))
		e.startTrials(ctx, n.LeaseOf)
	}
}

// startTrials starts the trials that are due.
func (e *Evidence) startTrials(ctx context.Context, lease func(steer.Client) (Lease, bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.judge.dueTrials(time.Now(), lease) {
		e.trials.Go(func() {
			e.slots <- struct{}{}
			defer func() { <-e.slots }()
			known, err := e.pods.TryClient(ctx, c)
			if err != nil {
				e.log.Debug("path of a bypassed client not tried", "client", c.String(), "err", err)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if h, still := e.judge.bypassed[c]; still {
				h.triesItself = !known
				e.judge.bypassed[c] = h
			}
		})
	}
}

// read reads the counters, and the notes only if queries were dropped.
func (e *Evidence) read(gap time.Duration, lease func(steer.Client) (Lease, bool)) error {
	// An earlier agent may have left bypassed clients, and the switch may have cleared some.
	if e.before == nil || e.anyBypassed() {
		suspects, err := e.kernel.Suspects()
		if err != nil {
			return err
		}
		e.reconcile(suspects)
	}
	unheard, err := e.kernel.Unheard()
	if err != nil {
		return err
	}
	for p, count := range unheard {
		e.stale = e.stale || e.before != nil && count > e.before[p]
	}
	e.before = unheard
	now := time.Now()
	if !e.stale || now.Before(e.next) {
		return nil
	}
	notes, err := e.kernel.Notes()
	if err != nil {
		return err
	}
	e.next = now.Add(min(share*time.Since(now), slowest))
	e.mu.Lock()
	dropped, again := e.judge.findDropped(now, notes, gap, lease)
	e.mu.Unlock()
	e.stale = again
	for _, c := range dropped {
		if holdErr := e.bypass(c); holdErr != nil {
			e.stale = true
			err = errors.Join(err, holdErr)
		}
	}
	return err
}

// bypass has the switch bypass a client.
func (e *Evidence) bypass(c steer.Client) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod := e.pods.PodOf(c.Source)
	h := e.judge.next(c, pod != "", time.Now())
	if err := e.bypasser.Hold(c, h.step); err != nil {
		return err
	}
	_, known := e.judge.bypassed[c]
	e.judge.noteBypass(c, h)
	e.updateGauge()
	if known {
		e.counts.prolonged.Inc()
		e.log.Debug("queries of a bypassed client are still dropped", "client", c.String(), "for", steer.Hold(h.step))
		return nil
	}
	e.counts.begun.Inc()
	e.log.Warn("pod's queries do not reach the agent; kube-dns answers. A network policy or firewall drops them: allow egress to addr",
		"pod", pod, "source", c.Source, "addr", c.Address, "protocol", c.Protocol)
	return nil
}

func (e *Evidence) reconcile(suspects []steer.Suspect) {
	e.mu.Lock()
	ended := e.judge.reconcile(time.Now(), suspects)
	e.updateGauge()
	e.mu.Unlock()
	for _, c := range ended {
		e.counts.ended.Inc()
		e.log.Info("pod is served by the agent again",
			"pod", e.pods.PodOf(c.Source), "source", c.Source, "addr", c.Address, "protocol", c.Protocol)
	}
}

func (e *Evidence) anyBypassed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.judge.bypassed) > 0
}

// updateGauge sets the gauge; mu is held.
func (e *Evidence) updateGauge() { e.counts.set(maps.Keys(e.judge.bypassed)) }

// logError logs an error if it is another than before.
func (e *Evidence) logError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != e.lastLogged && text != "" {
		e.log.Warn("pods whose queries a policy or firewall drops cannot be detected", "err", err)
	}
	e.lastLogged = text
}

// Bypassed lists the bypassed clients, in order of the sources.
func (e *Evidence) Bypassed() []Bypassed {
	e.mu.Lock()
	held := maps.Clone(e.judge.bypassed)
	e.mu.Unlock()
	var out []Bypassed
	for _, c := range slices.SortedFunc(maps.Keys(held), steer.Client.Compare) {
		h := held[c]
		out = append(out, Bypassed{Pod: e.pods.PodOf(c.Source), Source: c.Source, Address: c.Address, Protocol: c.Protocol.String(),
			Since: h.Since, NextTrial: h.nextTrial()})
	}
	return out
}
