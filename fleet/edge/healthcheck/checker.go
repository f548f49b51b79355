// Package healthcheck probes the addresses that clusters publish, with the health check that each cluster publishes for them, and reports
// which are healthy.
//
// It guarantees that the number of concurrent probes is limited and shared fairly among clusters, so that a cluster with many dead targets
// delays mainly its own probes. The package neither queries DNS nor chooses between addresses.
//
// On failure: a target is unhealthy after three failed probes in a row (Options.Failures), and healthy again after the first success. A
// check that may not be made has no Target.
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

// Options configure the probes. A field with its zero value gets the default, with which its comment ends.
type Options struct {
	// Every is the time between two probes of a target, shortened at random by up to a fifth; it is longer if no slot is free.
	// Default: 10 s
	Every time.Duration
	// Timeout is the time limit of one probe. With the defaults and free slots, a target that dies is unhealthy after at most 33 s.
	// Default: 3 s
	Timeout  time.Duration
	Failures int            // number of failed probes in a row that make a target unhealthy. Default: 3
	Most     int            // maximum number of targets; any others are not probed and get no Target. Default: 10,000
	Roots    *x509.CertPool // trusted CAs, until SetRoots changes them. Default: the system's
	// Dial opens the probes' connections. Default: that of a net.Dialer
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// atOnce is the maximum number of concurrent probes.
const atOnce = 256

// Target is the address of one check, with its health. A nil Target counts as healthy, because its health is unknown.
type Target struct {
	check  Check
	owner  atomic.Pointer[owner] // the cluster to which its probes count
	stop   context.CancelFunc
	asked  atomic.Bool // at least one probe has ended
	sick   atomic.Bool // the target is unhealthy by its probes
	left   atomic.Bool // the target is no longer probed, because it is above a limit on targets, and counts as healthy
	failed int         // number of failed probes in a row; only the target's own goroutine uses this field
}

// Well reports whether the target counts as healthy. It is safe for concurrent use.
func (t *Target) Well() bool { return t == nil || !t.sick.Load() || t.left.Load() }

// Checker probes targets. Its methods are safe for concurrent use.
type Checker struct {
	log     *slog.Logger
	o       Options
	ctx     context.Context //nolint:containedctx // of the goroutines that Set starts
	slots   *slots
	wg      sync.WaitGroup
	ok, bad atomic.Uint64 // numbers of successful and of failed probes
	roots   atomic.Pointer[x509.CertPool]

	mu      sync.Mutex // guards the fields below
	wanted  map[owner]map[Check]bool
	skipped map[string]skipped // by zone, as of the last Set
	running map[Check]*Target
}

// skipped is the number of a zone's checks that may not be made, and of those above a limit on targets.
type skipped struct{ refused, left int }

// New makes a checker. Its probes end with ctx.
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
	c := &Checker{log: log, o: o, ctx: ctx, slots: newSlots(atOnce), wanted: map[owner]map[Check]bool{}, skipped: map[string]skipped{},
		running: map[Check]*Target{}}
	c.SetRoots(o.Roots)
	return c
}

// SetRoots sets the trusted CAs for future probes; nil: the system's.
func (c *Checker) SetRoots(roots *x509.CertPool) { c.roots.Store(roots) }

// Set replaces the health checks of a zone, which are grouped by cluster; nil checks mean that the zone is no longer served. It returns the
// targets of those checks that are probed. A check that must not be made (see permit), for example of an address outside ranges, or that is
// above a limit on targets, gets no target. If there are too many checks, the clusters share the limit fairly. Zones share the target of an
// equal check, and a target that stays keeps its state.
func (c *Checker) Set(zone string, checks map[string][]Check, ranges []netip.Prefix) map[Check]*Target {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := range c.wanted {
		if o.zone == zone {
			delete(c.wanted, o)
		}
	}
	refused, wanted := 0, map[Check]bool{}
	var log func() // log one reason for all refused targets; there may be thousands
	for cluster, list := range checks {
		own := make(map[Check]bool, len(list))
		for _, check := range list {
			if err := check.permit(ranges); err != nil {
				refused++
				log = func() {
					c.log.Warn("some addresses get no probe", "zone", zone, "refused", refused, "cluster", cluster, "target", check.Address, "err", err)
				}
				continue
			}
			own[check], wanted[check] = true, true
		}
		c.wanted[owner{zone, cluster}] = own
	}
	before := c.skipped[zone] // log only if a number has changed, because Set is called for each change of the zone
	if log != nil && refused != before.refused {
		log()
	}
	allotted := allot(c.wanted, c.o.Most, func(check Check) bool { return c.running[check] != nil })
	for check, t := range c.running {
		if o, ok := allotted[check]; ok {
			t.owner.Store(&o)
			continue
		}
		t.left.Store(c.isWanted(check)) // if still wanted, it is over the limit: until the zone's next Set, it counts as healthy
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
	if left > 0 && left != before.left {
		c.log.Warn("too many health checks; those left over do not run, so they find no address unhealthy", "zone", zone,
			"most", c.o.Most, "most_per_address", maxPerAddress, "left", left)
	}
	if c.skipped[zone] = (skipped{refused, left}); len(checks) == 0 {
		delete(c.skipped, zone)
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

// start starts the goroutine that probes a check's target. c.mu must be held.
func (c *Checker) start(check Check, o owner) *Target {
	ctx, stop := context.WithCancel(c.ctx)
	t := &Target{check: check, stop: stop}
	t.owner.Store(&o)
	c.running[check] = t
	c.wg.Go(func() { // ends with ctx
		defer stop()
		// The first probe is at a random time in the first interval, so that a new zone's targets are not all probed at once.
		for wait := rand.N(c.o.Every); ; { //nolint:gosec // no secret
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			begun := time.Now()
			c.probeTarget(ctx, t)
			// A target that waited longer than the interval for its slot goes to the end of the queue after a millisecond, not at once:
			// Go 1.26's race detector crashes if a synctest bubble's timer has expired before it is waited for.
			wait = max(time.Millisecond, c.o.Every-rand.N(c.o.Every/5)-time.Since(begun)) //nolint:gosec // no secret
		}
	})
	return t
}

// probeTarget makes one probe, once a slot is free, and records the result.
func (c *Checker) probeTarget(ctx context.Context, t *Target) {
	o := *t.owner.Load()
	if !c.slots.take(ctx, o) {
		return
	}
	defer c.slots.give(o)
	bounded, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	err := probe(bounded, t.check, c.roots.Load(), c.o.Dial)
	if ctx.Err() != nil {
		return // the probe was cancelled, so it has no result
	}
	t.asked.Store(true)
	if err == nil {
		c.ok.Add(1)
		t.failed = 0
		if t.sick.Swap(false) {
			c.log.Info("an address passes its health check again", "target", t.check.Address, "protocol", t.check.Protocol, "port", t.check.Port)
		}
		return
	}
	c.bad.Add(1)
	if t.failed++; t.failed >= c.o.Failures && !t.sick.Swap(true) {
		c.log.Warn("an address is unhealthy", "target", t.check.Address, "protocol", t.check.Protocol, "port", t.check.Port, "err", err)
	}
}

// Wait returns when all probes have ended. End ctx first.
func (c *Checker) Wait() { c.wg.Wait() }
