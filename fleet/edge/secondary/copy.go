// Package secondary keeps a copy of a zone: it transfers the zone from its primary, follows its changes, and saves it on disk, so that
// the edge can serve it while the primary does not answer and after a restart.
//
// It guarantees that a zone that was read once is served until another version replaces it, without a time limit; its age is in the
// metrics. It owns only the zone's file and knows nothing of CoreDNS: its caller serves the records.
//
// On failure: a transfer that is incomplete or not of the zone changes nothing. A disk that is slow or cannot be written delays no answer
// and no transfer.
package secondary

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/pkg/tick"
)

// Intervals of a copy.
const (
	// between two queries for the serial; each interval is shortened at random by up to a quarter
	pollMost = 2 * time.Second
	// between two transfers of the whole zone, which correct the copy if incremental changes were applied to the wrong version; shortened
	// in the same way
	wholeMost = 15 * time.Minute
	retryMost = 8 * time.Second // the longest wait after a failed read, except that of together
	saveRest  = time.Second     // between writes of the file
	// while the zone does not change: between two updates of the file's modification time, and between two tries to write the file after a
	// failed one
	touchRest = time.Minute
	// lookRest is the minimum time between two reads, unless Follow is called: otherwise forged NOTIFY messages could cause
	// any number of reads.
	lookRest = 100 * time.Millisecond
	// together is the time limit of one read, for example of the transfer of a large zone over a slow line, and the minimum time between two
	// reads of a zone that stays too large, also after a NOTIFY, unless Follow is called.
	together = 2 * time.Minute
)

// Primary is the server from which the zone is read; *rfc2136.Client is one.
type Primary interface {
	Serial(ctx context.Context) (uint32, error)
	AXFR(ctx context.Context) (*rfc2136.Transfer, error)
	IXFR(ctx context.Context, since uint32) (*rfc2136.Transfer, error)
}

// Serve is called with a zone's records, the SOA first, to serve them from then on. It may keep them, but not modify them. If it returns an
// error, the zone is served as before.
type Serve func(records []dns.RR) error

// Bounded returns serve with a limit on the zone's size: most records, and rfc2136.Octets for each on average. Transfers have the same
// limit, but incremental changes could make the zone larger.
func Bounded(serve Serve, most int) Serve {
	return func(list []dns.RR) error {
		octets := 0
		for _, rr := range list {
			octets += dns.Len(rr)
		}
		if len(list) > most || octets > most*rfc2136.Octets {
			return fmt.Errorf("the zone has %d records with %d octets; at most %d records with %d octets are served",
				len(list), octets, most, most*rfc2136.Octets)
		}
		return serve(list)
	}
}

// Copy is the copy of one zone. Call Run once; the other methods may be called concurrently.
type Copy struct {
	// Confirmed is called each time the primary has confirmed that the served zone is current. Set it before Run; it may be nil.
	Confirmed func()

	zone     string
	file     string
	serve    Serve
	log      *slog.Logger
	notified tick.Chan

	changed tick.Chan // there is something to save
	counts  counts

	mu      sync.Mutex // guards the fields below
	primary Primary
	reserve bool // serve the same records again at the next read, because Follow was called
	// transfer the whole zone next: incremental changes may not fit, for example because the primary is another one or was restored
	whole   bool
	cut     context.CancelFunc // cancels the current read, or the pause after it
	full    time.Time          // the first read after this time transfers the whole zone
	records records            // empty: the zone was never read
	current time.Time          // when the primary last confirmed these records
	fault   string             // error of the last read; "" if the read succeeded
	logged  string             // kind of that error, or the error if it has none
	skip    bool               // the file already has these records
}

// counts are the numbers of whole transfers, of incremental ones and of failed reads, for the metrics.
type counts struct{ full, steps, failed atomic.Uint64 }

// New returns the copy of a zone, whose name must be canonical. If its file has records of an earlier run, they are served at once.
func New(log *slog.Logger, zone, file string, primary Primary, serve Serve) *Copy {
	c := &Copy{zone: zone, primary: primary, file: file, serve: serve, log: log.With("zone", zone),
		notified: tick.New(), changed: tick.New(), cut: func() {}}
	list, at, err := load(zone, file)
	if err == nil && list != nil {
		err = c.take(list)
	}
	switch {
	case err != nil:
		c.log.Warn("cannot use the zone's file; until its primary is read, the zone is not served", "file", file, "err", err)
	case list != nil:
		c.current = at
		c.log.Info("zone is served from its file until a transfer succeeds",
			"serial", c.records.soa.Serial, "age", time.Since(at).Round(time.Second))
	}
	c.skip, c.whole = list != nil, true
	return c
}

// Notify makes Run read the zone soon, because the primary has sent a NOTIFY. It does not block.
func (c *Copy) Notify() { c.notified.Send() }

// Follow makes the copy read from another primary, and serve its records again, because the caller's Serve may handle them in another way
// now. It does not block. The whole zone is transferred next, because serials of two primaries cannot be compared.
func (c *Copy) Follow(primary Primary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primary, c.reserve, c.whole = primary, true, true
	c.cut()
	c.notified.Send()
}

// Run reads the zone from its primary, and saves it, until ctx ends.
func (c *Copy) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.keep(ctx) })
	defer wg.Wait()
	for retry := time.Duration(0); ctx.Err() == nil; {
		uncut, cancel := context.WithCancel(ctx) // Follow cancels it
		bounded, done := context.WithTimeout(uncut, together)
		c.mu.Lock()
		c.cut = cancel
		c.mu.Unlock()
		err := c.look(bounded)
		done()
		if err != nil && uncut.Err() != nil {
			cancel()
			continue // the read was cancelled
		}
		c.note(err)
		wait := pollMost
		if err != nil {
			retry = min(max(2*retry, pollMost/2), retryMost)
			wait = retry
		} else {
			retry = 0
		}
		rest := lookRest
		if rfc2136.KindOf(err) == rfc2136.TooLarge && retry == retryMost {
			rest = together // the zone stays too large, and each try transfers as much as is allowed
		}
		tick.Pause(uncut, rest)
		cancel()
		timer := time.NewTimer(wait - rand.N(wait/4) - lookRest) //nolint:gosec // no secret: keeps edges from querying at the same time
		select {
		case <-ctx.Done():
		case <-c.notified:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// note records the result of a read, logs it if it is of another kind than that of the last read, and calls Confirmed if the read
// succeeded.
func (c *Copy) note(err error) {
	if err == nil && c.Confirmed != nil {
		c.Confirmed()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault = ""; err != nil {
		c.fault = err.Error()
		c.counts.failed.Add(1)
		switch rfc2136.KindOf(err) {
		case rfc2136.Unreachable, rfc2136.NoAnswer: // the primary may be restored meanwhile, and have the same serial with other content
			c.whole = true
		case rfc2136.TooLarge: // the changes may have more records than the zone has after them
			c.whole = true
		}
	} else {
		c.current = time.Now()
	}
	before := c.logged
	// Errors of one kind may differ at each read, for example by the seconds of a ClockSkew.
	c.logged = cmp.Or(string(rfc2136.KindOf(err)), c.fault)
	switch {
	case c.logged == before:
	case err != nil:
		c.log.Warn("cannot read or serve the zone; its last copy, if any, stays in use", "kind", string(rfc2136.KindOf(err)), "err", err)
	default:
		c.log.Info("zone was read from its primary; its copy is current")
	}
}

// look reads the zone's changes from the primary, or the whole zone if that is due.
func (c *Copy) look(ctx context.Context) error {
	c.mu.Lock()
	has, primary, reserve, whole := c.records, c.primary, c.reserve, c.whole || time.Now().After(c.full)
	c.reserve = false
	c.mu.Unlock()
	if reserve && has.soa != nil {
		if err := c.serve(has.list()); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
	}
	if has.soa == nil || whole {
		return c.transfer(ctx, primary)
	}
	serial, err := primary.Serial(ctx)
	if err != nil || serial == has.soa.Serial {
		return err
	}
	t, err := primary.IXFR(ctx, has.soa.Serial)
	switch {
	case err != nil && rfc2136.KindOf(err) != rfc2136.Unreachable && rfc2136.KindOf(err) != rfc2136.TooLarge:
		// For example, the server has no incremental transfers, or does not know the changes since this serial.
		return c.transfer(ctx, primary)
	case err != nil:
		return err
	case t.Full != nil:
		return c.takeWhole(t.Full)
	case len(t.Steps) == 0: // the primary's serial is older than this copy's: the zone was restored from a backup
		return c.transfer(ctx, primary)
	}
	next, err := has.apply(t.Steps)
	if err != nil {
		c.log.Info("the primary's changes cannot be applied to the zone's copy; the whole zone is transferred once", "err", err)
		return c.transfer(ctx, primary)
	}
	c.counts.steps.Add(1)
	return c.take(next.list())
}

// transfer reads the whole zone.
func (c *Copy) transfer(ctx context.Context, primary Primary) error {
	t, err := primary.AXFR(ctx)
	if err != nil {
		return err
	}
	if err := c.takeWhole(t.Full); err != nil {
		return err
	}
	c.mu.Lock()
	c.whole = c.whole && c.primary != primary
	c.mu.Unlock()
	return nil
}

// takeWhole serves the records of a whole transfer, and sets when the next whole transfer is due.
func (c *Copy) takeWhole(list []dns.RR) error {
	c.counts.full.Add(1)
	c.mu.Lock()
	c.full = time.Now().Add(wholeMost - rand.N(wholeMost/4)) //nolint:gosec // no secret: keeps edges from transferring at the same time
	c.mu.Unlock()
	return c.take(list)
}

// take serves the records of the zone, and wakes keep, which saves them.
func (c *Copy) take(list []dns.RR) error {
	next, err := index(c.zone, list)
	if err != nil {
		return err
	}
	if err := c.serve(next.list()); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	c.mu.Lock()
	c.records, c.skip = next, false
	c.mu.Unlock()
	c.changed.Send()
	return nil
}

// State is the status of a copy.
type State struct {
	Zone    string
	Serial  uint32
	Records int       // 0: the zone was never read, so it is not served
	Current time.Time // when the primary last confirmed these records
	Fault   string    // error of the last read; "" if the read succeeded
}

// State returns the status of the copy.
func (c *Copy) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Zone: c.zone, Records: c.records.count, Current: c.current, Fault: c.fault}
	if c.records.soa != nil {
		s.Serial = c.records.soa.Serial
	}
	return s
}

// records are a zone's records by name.
type records struct {
	soa   *dns.SOA
	names map[string][]dns.RR // by canonical name; without the SOA
	count int                 // with the SOA
}

// index returns the records of a zone by name. The SOA may occur twice, as in a transfer.
func index(zone string, list []dns.RR) (records, error) {
	r := records{names: make(map[string][]dns.RR, len(list)/2)}
	for _, rr := range list {
		name := dns.CanonicalName(rr.Header().Name)
		if !dns.IsSubDomain(zone, name) {
			return records{}, fmt.Errorf("%s is not in the zone", name)
		}
		if soa, ok := rr.(*dns.SOA); ok {
			if name != zone || r.soa != nil && r.soa.Serial != soa.Serial {
				return records{}, fmt.Errorf("an SOA of %s with serial %d is not the zone's", name, soa.Serial)
			}
			r.soa = soa
			continue
		}
		r.names[name] = append(r.names[name], rr)
		r.count++
	}
	if r.soa == nil {
		return records{}, errors.New("no SOA: the zone is not whole")
	}
	r.count++
	return r, nil
}

// list returns all records, the SOA first; records of the same name are next to each other.
func (r records) list() []dns.RR {
	out := make([]dns.RR, 0, r.count)
	out = append(out, r.soa)
	for _, set := range r.names {
		out = append(out, set...)
	}
	return out
}

// errNotNext is the error for an incremental change that does not fit this version of the zone.
var errNotNext = errors.New("a change does not fit the zone's copy")

// crowded is the maximum number of records that a name may have if an incremental change touches it. If it has more, the whole zone is
// transferred, because each changed record must be found among all records of its name, which takes long.
const crowded = 1_000

// apply returns the records after incremental changes. It does not modify r.
func (r records) apply(steps []rfc2136.Delta) (records, error) {
	next := records{soa: r.soa, names: make(map[string][]dns.RR, len(r.names)), count: r.count}
	for name, set := range r.names {
		next.names[name] = slices.Clip(set) // append then copies the set
	}
	for _, s := range steps {
		if s.From != next.soa.Serial {
			return records{}, errNotNext
		}
		for _, rr := range s.Deleted {
			name := dns.CanonicalName(rr.Header().Name)
			set := next.names[name]
			if len(set) > crowded {
				return records{}, fmt.Errorf("%s has too many records for an incremental change", name)
			}
			at := slices.IndexFunc(set, func(o dns.RR) bool { return dns.IsDuplicate(o, rr) })
			if at < 0 {
				return records{}, fmt.Errorf("%w: it deletes %s", errNotNext, rr)
			}
			next.names[name] = slices.Concat(set[:at], set[at+1:])
			next.count--
		}
		for _, rr := range s.Added {
			name := dns.CanonicalName(rr.Header().Name)
			if len(next.names[name]) > crowded {
				return records{}, fmt.Errorf("%s has too many records for an incremental change", name)
			}
			if slices.ContainsFunc(next.names[name], func(o dns.RR) bool { return dns.IsDuplicate(o, rr) }) {
				return records{}, fmt.Errorf("%w: it adds %s", errNotNext, rr)
			}
			next.names[name] = append(next.names[name], rr)
			next.count++
		}
		next.soa = s.SOA
	}
	return next, nil
}
