// Package evidence has pods passed by whose questions the switch delivers and the host's own filters drop: behind an egress
// policy that allows only kube-dns, in a firewall zone of their own. kube-dns answers them as long as that lasts.
//
// The kernel takes the evidence (see pkg/steer/nft): who asked, before the filters, and who was heard, behind them. This package
// reads it, decides, and sends a control packet for each hold. It must never hold a client while the prober's own way is in
// doubt, write a rule, or cost anything a query.
//
// Failure policy: evidence that cannot be read or used is said once and costs only itself; the switch goes on delivering.
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

// Bounds of what reading the notes may cost: they are not read again before share times what it took, where somebody sends
// from many addresses that are all dropped; and no later than slowest, since a starved process takes long for little.
const (
	share   = 20
	slowest = time.Second
)

// Switch is the evidence in the host table. Only Run's goroutine uses it.
type Switch interface {
	Unheard() (map[steer.Protocol]int64, error)
	Notes() (steer.Notes, error)
	Suspects() ([]steer.Suspect, error)
}

// Holder sends the control packets.
type Holder interface {
	Hold(c steer.Client, step int) error
}

// Node is what the loop has to say about each look.
type Node interface {
	// Pace is the time between two looks, and the least time between two questions that count.
	Pace() (every, gap time.Duration)
	// Held tells of the lease that a client's questions are delivered under; false where it is not held.
	Held(c steer.Client) (Lease, bool)
}

// Bypassed is a client that kube-dns answers although the agent could.
type Bypassed struct {
	Pod       string     `json:"pod,omitempty"` // namespace/name, where the plugin knows the source
	Source    netip.Addr `json:"source"`
	Address   netip.Addr `json:"address"`
	Protocol  string     `json:"protocol"`
	Since     time.Time  `json:"since"`
	NextTrial time.Time  `json:"nextTrial"` // from then on its next question is delivered, to see whether it is heard
}

// Evidence is the keeper. All methods may be called at any time.
type Evidence struct {
	log    *slog.Logger
	read   Switch
	holder Holder
	pod    func(netip.Addr) string
	counts *counts

	before map[steer.Protocol]int64 // unheard questions at the last look
	stale  bool                     // the notes have to be read at the next look
	next   time.Time                // not before
	said   string                   // the error that the log has had

	judge *judge
	mu    sync.Mutex // guards judge's suspects, which Run's goroutine alone changes and Bypassed reads
}

// New makes a keeper. pod names the pod of an address, "" where there is none.
func New(log *slog.Logger, read Switch, holder Holder, pod func(netip.Addr) string) *Evidence {
	return &Evidence{log: log, read: read, holder: holder, pod: pod, counts: newCounts(), judge: newJudge()}
}

// Run looks again and again until ctx ends. Holds outlive it: they lapse by themselves.
func (e *Evidence) Run(ctx context.Context, n Node) {
	for {
		every, gap := n.Pace()
		// On a grid of time, with the probes: waking up costs more than a look does.
		if !tick.Grid(ctx, every) {
			return
		}
		e.say(e.look(gap, n.Held))
	}
}

// look is one look: the counters first, and the notes only when somebody was not heard.
func (e *Evidence) look(gap time.Duration, lease func(steer.Client) (Lease, bool)) error {
	// An earlier agent may have left suspects, and those there are may have been cleared.
	if e.before == nil || e.any() {
		suspects, err := e.read.Suspects()
		if err != nil {
			return err
		}
		e.reconcile(suspects)
	}
	unheard, err := e.read.Unheard()
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
	notes, err := e.read.Notes()
	if err != nil {
		return err
	}
	e.next = now.Add(min(share*time.Since(now), slowest))
	verdicts, again := e.judge.look(now, notes, gap, lease)
	e.stale = again
	for _, v := range verdicts {
		if holdErr := e.holder.Hold(v.client, v.step); holdErr != nil {
			e.stale = true
			err = errors.Join(err, holdErr)
			continue
		}
		e.mu.Lock()
		_, known := e.judge.held[v.client]
		e.judge.hold(v, time.Now())
		e.count()
		e.mu.Unlock()
		if known {
			e.counts.prolonged.Inc()
			e.log.Debug("still not heard", "client", v.client.String(), "for", steer.Hold(v.step))
			continue
		}
		e.counts.begun.Inc()
		e.log.Warn("questions of a pod do not reach the agent, kube-dns answers them: a network policy or firewall drops them; allow the address",
			"pod", e.pod(v.client.Source), "source", v.client.Source, "addr", v.client.Address, "protocol", v.client.Protocol)
	}
	return err
}

func (e *Evidence) reconcile(suspects []steer.Suspect) {
	e.mu.Lock()
	ended := e.judge.reconcile(time.Now(), suspects)
	e.count()
	e.mu.Unlock()
	for _, c := range ended {
		e.counts.ended.Inc()
		e.log.Info("a pod is served by the agent again", "pod", e.pod(c.Source), "source", c.Source, "addr", c.Address, "protocol", c.Protocol)
	}
}

func (e *Evidence) any() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.judge.held) > 0
}

// count sets the gauge; mu is held.
func (e *Evidence) count() { e.counts.set(maps.Keys(e.judge.held)) }

// say logs an error when it is another than before.
func (e *Evidence) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != e.said && text != "" {
		e.log.Warn("pods behind a policy or firewall that drops their questions are not found", "err", err)
	}
	e.said = text
}

// Bypassed lists who is passed by, in order of the sources.
func (e *Evidence) Bypassed() []Bypassed {
	e.mu.Lock()
	held := maps.Clone(e.judge.held)
	e.mu.Unlock()
	var out []Bypassed
	for _, c := range slices.SortedFunc(maps.Keys(held), steer.Client.Compare) {
		h := held[c]
		out = append(out, Bypassed{Pod: e.pod(c.Source), Source: c.Source, Address: c.Address, Protocol: c.Protocol.String(), Since: h.since, NextTrial: h.until()})
	}
	return out
}
