// Package healthcheck tells whether the addresses that clusters publish are well: it asks each of them by the health check that its cluster
// publishes beside it.
//
// It owns the probes and what they found. It knows no DNS and chooses nothing. Failure policy: a target is well until it has failed three
// times in a row, and again as soon as it answers once; what may not be probed is taken to be well.
package healthcheck

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Options say how targets are probed. Zero values mean the default that is named beside the field.
type Options struct {
	// Every is the longest time from one probe of a target to its next; each is up to a fifth shorter by chance. 10 s
	Every time.Duration
	// Timeout bounds one probe. 3 s: with the two above, a target that dies is sick after 33 s at the latest.
	Timeout  time.Duration
	Failures int            // in a row, until a target is sick. 3
	Most     int            // targets that are probed at all; more are taken to be well. 10,000
	Roots    *x509.CertPool // who may sign certificates, until SetRoots says otherwise. The system's
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// atOnce bounds the probes that are going on.
const atOnce = 256

// Target is one address and how it is. A nil Target is well: nothing is known of it.
type Target struct {
	check  Check
	owner  atomic.Pointer[owner] // on whose account it is probed
	stop   context.CancelFunc
	asked  atomic.Bool
	sick   atomic.Bool
	left   atomic.Bool // it is not probed any more, for want of room
	failed int         // in a row; the goroutine's own
}

// Well reports how the target is. It is safe for concurrent use.
func (t *Target) Well() bool { return t == nil || !t.sick.Load() || t.left.Load() }

// Checker probes targets. Its methods are safe for concurrent use.
type Checker struct {
	log     *slog.Logger
	o       Options
	ctx     context.Context //nolint:containedctx // of the goroutines, which Set starts
	slots   *slots
	wg      sync.WaitGroup
	ok, bad atomic.Uint64 // probes
	roots   atomic.Pointer[x509.CertPool]

	mu      sync.Mutex // guards the fields below
	wanted  map[owner]map[Check]bool
	refused map[string]int
	running map[Check]*Target
}

// New makes a checker whose probes end with ctx.
func New(ctx context.Context, log *slog.Logger, o Options) *Checker {
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 3 * time.Second
	}
	if o.Failures == 0 {
		o.Failures = 3
	}
	if o.Most == 0 {
		o.Most = 10_000
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	c := &Checker{log: log, o: o, ctx: ctx, slots: newSlots(atOnce), wanted: map[owner]map[Check]bool{}, refused: map[string]int{},
		running: map[Check]*Target{}}
	c.SetRoots(o.Roots)
	return c
}

// SetRoots says who may sign certificates from the next probe on; nil: whom the system trusts.
func (c *Checker) SetRoots(roots *x509.CertPool) { c.roots.Store(roots) }

// Set says what is to be probed for a zone, by the cluster that publishes it, in place of what was said before; none for a zone that is
// gone. It returns the targets that are probed: a check that lies outside of ranges, or is one too many, has none. Where there are too many,
// clusters share what there is. Zones share their targets, and what is known of one stays where it stays.
func (c *Checker) Set(zone string, checks map[string][]Check, ranges []netip.Prefix) map[Check]*Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := range c.wanted {
		if o.zone == zone {
			delete(c.wanted, o)
		}
	}
	refused, wanted := 0, map[Check]bool{}
	var log func() // names one cause; there may be thousands
	for cluster, list := range checks {
		own := make(map[Check]bool, len(list))
		for _, check := range list {
			if err := check.permit(ranges); err != nil {
				refused++
				log = func() {
					c.log.Warn("targets are not probed", "zone", zone, "refused", refused, "cluster", cluster, "target", check.Address, "err", err)
				}
				continue
			}
			own[check], wanted[check] = true, true
		}
		c.wanted[owner{zone, cluster}] = own
	}
	if log != nil && refused != c.refused[zone] { // zones are set at each change of theirs
		log()
	}
	if c.refused[zone] = refused; len(checks) == 0 {
		delete(c.refused, zone)
	}
	allotted := allot(c.wanted, c.o.Most, func(check Check) bool { return c.running[check] != nil })
	for check, t := range c.running {
		if o, ok := allotted[check]; ok {
			t.owner.Store(&o)
			continue
		}
		t.left.Store(c.isWanted(check)) // another zone still has it
		t.stop()
		delete(c.running, check)
	}
	out, left := make(map[Check]*Target, len(wanted)), 0
	for check := range wanted {
		o, ok := allotted[check]
		if !ok {
			left++
			continue
		}
		t := c.running[check]
		if t == nil {
			t = c.start(check, o)
		}
		out[check] = t
	}
	if left > 0 {
		c.log.Warn("too many targets: clusters share the probes, and the rest is taken to be well", "zone", zone, "most", c.o.Most,
			"most_per_address", maxPerAddress, "left", left)
	}
	return out
}

func (c *Checker) isWanted(check Check) bool {
	for _, set := range c.wanted {
		if set[check] {
			return true
		}
	}
	return false
}

// start is called with mu held.
func (c *Checker) start(check Check, o owner) *Target {
	ctx, stop := context.WithCancel(c.ctx)
	t := &Target{check: check, stop: stop}
	t.owner.Store(&o)
	c.running[check] = t
	c.wg.Go(func() { // ends with ctx
		defer stop()
		// Somewhere in the first interval: the targets of a zone that is read must not be asked at once.
		for wait := rand.N(c.o.Every); ; { //nolint:gosec // no secret
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			begun := time.Now()
			c.ask(ctx, t)
			// One that waited longer than that for its turn goes to the queue's end, and not at once: Go 1.26's race detector crashes
			// where a bubble's timer has ended before it is waited for.
			wait = max(time.Millisecond, c.o.Every-rand.N(c.o.Every/5)-time.Since(begun)) //nolint:gosec // no secret
		}
	})
	return t
}

// ask probes once.
func (c *Checker) ask(ctx context.Context, t *Target) {
	o := *t.owner.Load()
	if !c.slots.take(ctx, o) {
		return
	}
	defer c.slots.give(o)
	bounded, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	err := probe(bounded, t.check, c.roots.Load(), c.o.Dial)
	if ctx.Err() != nil {
		return // cut off by us
	}
	t.asked.Store(true)
	if err == nil {
		c.ok.Add(1)
		t.failed = 0
		if t.sick.Swap(false) {
			c.log.Info("a target is well again", "target", t.check.Address, "protocol", t.check.Protocol, "port", t.check.Port)
		}
		return
	}
	c.bad.Add(1)
	if t.failed++; t.failed >= c.o.Failures && !t.sick.Swap(true) {
		c.log.Warn("a target failed its health check", "target", t.check.Address, "protocol", t.check.Protocol, "port", t.check.Port, "err", err)
	}
}

// Wait returns when all probes have ended, after ctx.
func (c *Checker) Wait() { c.wg.Wait() }
