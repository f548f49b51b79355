// Package evidence finds pods whose queries the host's own filters drop after the switch has delivered them to the agent: for example an
// egress policy that allows only kube-dns, or a firewall zone. The switch bypasses such a pod while that lasts, so kube-dns answers it.
//
// The kernel records which clients sent a query, before the filters, and whose queries passed them (see pkg/steer/nft). This package
// reads the records, reports them to podstate as events, and sends the control packets that start or prolong a bypass. It starts no bypass
// while the prober's own path may be closed, writes no rule, and does no work for each query.
//
// On failure: if the records cannot be read, the package logs the error when its text changes, and bypasses no further client; the switch
// goes on delivering.
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

// Limits of the CPU time for reading the kernel's records of clients. From the start of one read to the next, share times the duration of
// the read must pass, because a client whose queries from many addresses are dropped makes the records long. That time is limited to
// slowest, because a read may also take long if the process gets little CPU time.
const (
	share   = 20
	slowest = time.Second
)

const maxTrials = 16 // pod trials of bypassed clients that may run at the same time

// Switch reads the records in the host table. Only the goroutine of Run uses it.
type Switch interface {
	// Unheard returns, by protocol, how many queries were delivered and did not pass the host's filters since the table was made.
	Unheard() (map[steer.Protocol]int64, error)
	// Notes returns which clients' queries were delivered, and which of them passed the host's filters.
	Notes() (steer.Notes, error)
	// Suspects returns the clients that the switch bypasses, also those whose next query it delivers as a trial.
	Suspects() ([]steer.Suspect, error)
}

// Bypasser sends the control packets that make the switch bypass a client.
type Bypasser interface {
	// Hold starts or prolongs the bypass of c, for the time steer.Hold(step).
	Hold(c steer.Client, step int) error
}

// Pods are the pods of the node.
type Pods interface {
	// PodOf returns the namespace/name of the pod that has an address; "" if no such pod is known.
	PodOf(netip.Addr) string
	// TryClient runs a pod trial for a client that the switch bypasses, from its pod's netns. known is false if the agent knows no pod
	// with the client's address, or cannot enter its netns.
	TryClient(ctx context.Context, c steer.Client) (known bool, err error)
}

// Node is the node's control loop.
type Node interface {
	// Pace returns the time between two reads of the records, and the least time between two dropped queries that together count as
	// evidence.
	Pace() (every, gap time.Duration)
	// LeaseOf returns the lease under which a client's queries are delivered; false if the lease is not held.
	LeaseOf(c steer.Client) (Lease, bool)
}

// Bypassed is a client that the switch sends to kube-dns because its queries do not reach the agent.
type Bypassed struct {
	Pod       string     `json:"pod,omitempty"` // namespace/name; "" if no known pod has the source address
	Source    netip.Addr `json:"source"`
	Address   netip.Addr `json:"address"`
	Protocol  string     `json:"protocol"`
	Since     time.Time  `json:"since"`
	NextTrial time.Time  `json:"nextTrial"` // when the client's path to the agent is tried next
}

// Evidence reads the kernel's records and bypasses clients by them. Run is called once; the other methods are safe for concurrent use.
type Evidence struct {
	log      *slog.Logger
	kernel   Switch
	bypasser Bypasser
	pods     Pods
	counts   counts
	trials   sync.WaitGroup
	slots    chan struct{} // limits how many trials run at once

	before     map[steer.Protocol]int64 // count of dropped queries at the last read, by protocol
	stale      bool                     // the records must be read: more queries were dropped, or a read or a bypass must be repeated
	next       time.Time                // the records are not read before this time
	lastLogged string                   // text of the error of the last read; "" if it had none

	mu    sync.Mutex // guards the contents of judge
	judge *judge
}

// New returns an Evidence that reads the records of the given switch. Run starts it.
func New(log *slog.Logger, kernel Switch, bypasser Bypasser, pods Pods) *Evidence {
	return &Evidence{log: log, kernel: kernel, bypasser: bypasser, pods: pods, counts: newCounts(), slots: make(chan struct{}, maxTrials),
		judge: newJudge()}
}

// Run reads the records at intervals until ctx ends. A bypass outlives Run, and then expires in the kernel by itself.
func (e *Evidence) Run(ctx context.Context, n Node) {
	defer e.trials.Wait()
	for {
		every, gap := n.Pace()
		// Reads coincide with the prober's probes, because waking the process costs more than a read does.
		if !tick.Grid(ctx, every) {
			return
		}
		e.logError(e.read(gap, n.LeaseOf))
		e.startTrials(ctx, n.LeaseOf)
	}
}

// startTrials starts the pod trials of bypassed clients that are due.
func (e *Evidence) startTrials(ctx context.Context, lease func(steer.Client) (Lease, bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.judge.dueTrials(time.Now(), lease) {
		e.trials.Go(func() {
			e.slots <- struct{}{}
			defer func() { <-e.slots }()
			known, err := e.pods.TryClient(ctx, c)
			if err != nil {
				e.log.Debug("cannot run a test query from a bypassed client's netns; will retry", "client", c.String(), "err", err)
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

// read reads how many queries were dropped, and the records of clients only if that number grew or an earlier read or bypass must be
// repeated. It makes the switch bypass the clients whose queries were dropped.
func (e *Evidence) read(gap time.Duration, lease func(steer.Client) (Lease, bool)) error {
	// An earlier agent may have bypassed clients, and the switch may have ended some bypasses.
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

// bypass makes the switch bypass a client, or prolongs its bypass.
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
	if known {
		e.counts.prolonged.Inc()
		e.log.Debug("a policy or firewall dropped a bypassed client's trial query; bypass prolonged", "client", c.String(),
			"for_at_most", steer.Hold(h.step))
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
	e.mu.Unlock()
	for _, c := range ended {
		e.counts.ended.Inc()
		e.log.Info("bypass ended; the client's queries go to the agent again",
			"pod", e.pods.PodOf(c.Source), "source", c.Source, "addr", c.Address, "protocol", c.Protocol)
	}
}

func (e *Evidence) anyBypassed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.judge.bypassed) > 0
}

// logError logs an error unless the last one had the same text.
func (e *Evidence) logError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != e.lastLogged && text != "" {
		e.log.Warn("cannot find or bypass pods whose queries a policy or firewall drops; will retry", "err", err)
	}
	e.lastLogged = text
}

// Bypassed lists the bypassed clients, sorted by source address.
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
