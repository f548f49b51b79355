// Package secondary keeps a copy of a zone: it transfers the zone from the primary, follows its changes, and keeps it on disk, so that the
// edge answers with it while the primary is away and after a restart.
//
// It owns the zone's file and nothing else. It knows no CoreDNS: whoever it gives the records to answers with them.
//
// Failure policy: a zone that was read once is served until another takes its place, without limit in time; its age is shown. A transfer
// that is not whole, or not of the zone, changes nothing. A disk that cannot be written, or is slow, delays no answer and no transfer.
package secondary

import (
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

// Times of a copy.
const (
	pollMost  = 2 * time.Second  // from one look at the serial to the next; each is up to a quarter shorter by chance
	wholeMost = 15 * time.Minute // from one whole transfer to the next: steps can fit a history that is not theirs
	retryMost = 8 * time.Second  // where the primary does not answer
	saveRest  = time.Second      // from one write of the file to the next
	touchRest = time.Minute      // from one note of "still current" to the next, and from one try to the next where the disk is full
	// lookRest is from one look to the next: NOTIFYs with the primary's address as their sender are anybody's.
	lookRest = 100 * time.Millisecond
	// together bounds one look: a transfer of a large zone over a slow line.
	together = 2 * time.Minute
)

// Primary is asked for the zone; see ddns.Client.
type Primary interface {
	Serial(ctx context.Context) (uint32, error)
	AXFR(ctx context.Context) (*rfc2136.Transfer, error)
	IXFR(ctx context.Context, since uint32) (*rfc2136.Transfer, error)
}

// Serve takes a zone's records over, the SOA first, and keeps them. An error says why they cannot be served; nothing is changed then.
type Serve func(records []dns.RR) error

// Bounded is serve, but for a zone that is too large, by its records or by their octets. A transfer has the same bound, but a zone grows by
// increments, too, each of which is small.
func Bounded(serve Serve, most int) Serve {
	return func(list []dns.RR) error {
		octets := 0
		for _, rr := range list {
			octets += dns.Len(rr)
		}
		if len(list) > most || octets > most*rfc2136.Octets {
			return fmt.Errorf("%d records of %d octets are more than %d, or than %d octets", len(list), octets, most, most*rfc2136.Octets)
		}
		return serve(list)
	}
}

// Copy is one zone's copy. Its methods are safe for concurrent use, but for Run.
type Copy struct {
	// Confirmed is called each time when the primary has said that what was served last is the zone as it is. It is set before Run, and may
	// be nil.
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
	anew    bool               // the zone is to be served anew: how it is served changed
	whole   bool               // the next transfer is a whole one: the primary is another, or may have another history
	cut     context.CancelFunc // ends the look that goes on
	full    time.Time          // when the zone is transferred whole at the latest
	records records            // empty: none was read
	current time.Time          // when the primary last said that these are its records
	fault   string             // of the last look; "" for none
	skip    bool               // nothing new to save: as it was read from the file
}

// counts are of transfers, for the metrics.
type counts struct{ full, steps, failed atomic.Uint64 }

// New makes a copy of a zone, by its canonical name, that is kept in a file. What the file has is served at once.
func New(log *slog.Logger, zone, file string, primary Primary, serve Serve) *Copy {
	c := &Copy{zone: zone, primary: primary, file: file, serve: serve, log: log.With("zone", zone), notified: tick.New(), changed: tick.New(), cut: func() {}}
	list, at, err := load(zone, file)
	if err == nil && list != nil {
		err = c.take(list)
	}
	switch {
	case err != nil:
		c.log.Warn("the zone's file is not used: the zone is transferred anew", "file", file, "err", err)
	case list != nil:
		c.current = at
		c.log.Info("zone read from its file", "serial", c.records.soa.Serial, "age", time.Since(at).Round(time.Second))
	}
	c.skip, c.whole = list != nil, true
	return c
}

// Notify says that the primary has something new. It does not wait.
func (c *Copy) Notify() { c.notified.Send() }

// Follow has the copy follow another primary, and serve what it has anew, since how it is served may have changed. It does not wait. The
// zone is transferred whole: a serial of one primary says nothing of another's.
func (c *Copy) Follow(primary Primary) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.primary, c.anew, c.whole = primary, true, true
	c.cut()
	c.notified.Send()
}

// Run follows the primary until ctx ends, and saves what it has.
func (c *Copy) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.keep(ctx) })
	defer wg.Wait()
	for retry := time.Duration(0); ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, together)
		c.mu.Lock()
		c.cut = cancel
		c.mu.Unlock()
		err := c.look(bounded)
		wasCut := errors.Is(bounded.Err(), context.Canceled)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil && wasCut {
			continue // Follow named another primary
		}
		c.note(err)
		wait := pollMost
		if err != nil {
			retry = min(max(2*retry, pollMost/2), retryMost)
			wait = retry
		} else {
			retry = 0
		}
		tick.Pause(ctx, lookRest)
		timer := time.NewTimer(wait - rand.N(wait/4) - lookRest) //nolint:gosec // no secret: edges must not ask at once
		select {
		case <-ctx.Done():
		case <-c.notified:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// note keeps what became of a look, and says changes of it.
func (c *Copy) note(err error) {
	if err == nil && c.Confirmed != nil {
		c.Confirmed()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.fault
	if c.fault = ""; err != nil {
		c.fault = err.Error()
		c.counts.failed.Add(1)
		switch rfc2136.KindOf(err) {
		case rfc2136.Unreachable, rfc2136.NoAnswer: // it may be restored meanwhile, and reach our serial on another way
			c.whole = true
		case rfc2136.TooLarge: // all that changed may be more than what is left of it
			c.whole = true
		}
	} else {
		c.current = time.Now()
	}
	switch {
	case c.fault == before:
	case err != nil:
		c.log.Warn("the zone is not current: the primary cannot be read", "kind", string(rfc2136.KindOf(err)), "err", err)
	default:
		c.log.Info("the zone is current again")
	}
}

// look reads what is new.
func (c *Copy) look(ctx context.Context) error {
	c.mu.Lock()
	has, primary, anew, whole := c.records, c.primary, c.anew, c.whole || time.Now().After(c.full)
	c.anew = false
	c.mu.Unlock()
	if anew && has.soa != nil {
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
		// A server without increments, or one whose history is another.
		return c.transfer(ctx, primary)
	case err != nil:
		return err
	case t.Full != nil:
		return c.takeWhole(t.Full)
	case len(t.Steps) == 0: // an older serial than ours: the zone was restored
		return c.transfer(ctx, primary)
	}
	next, err := has.apply(t.Steps)
	if err != nil {
		c.log.Info("the primary's changes do not fit: the zone is transferred whole", "err", err)
		return c.transfer(ctx, primary)
	}
	c.counts.steps.Add(1)
	return c.take(next.list())
}

// transfer reads the zone whole.
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

// takeWhole takes what the primary says is all of the zone.
func (c *Copy) takeWhole(list []dns.RR) error {
	c.counts.full.Add(1)
	c.mu.Lock()
	c.full = time.Now().Add(wholeMost - rand.N(wholeMost/4)) //nolint:gosec // no secret: edges must not ask at once
	c.mu.Unlock()
	return c.take(list)
}

// take has records served, and saved later.
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

// State is how a copy stands.
type State struct {
	Zone    string
	Serial  uint32
	Records int       // 0: none was read, and the zone is not served
	Current time.Time // when the primary last said that these are its records
	Fault   string    // what keeps it from saying so now; "" for nothing
}

// State returns how the copy stands.
func (c *Copy) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Zone: c.zone, Records: c.records.count, Current: c.current, Fault: c.fault}
	if c.records.soa != nil {
		s.Serial = c.records.soa.Serial
	}
	return s
}

// records are a zone's, by name.
type records struct {
	soa   *dns.SOA
	names map[string][]dns.RR // canonical; without the SOA
	count int
}

// index takes a zone's records apart. The SOA may stand there twice, as in a transfer.
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

// list are the records with the SOA first, each name's together.
func (r records) list() []dns.RR {
	out := make([]dns.RR, 0, r.count)
	out = append(out, r.soa)
	for _, set := range r.names {
		out = append(out, set...)
	}
	return out
}

// errNotNext is of a step that does not begin where the records are.
var errNotNext = errors.New("a change does not begin where the zone is")

// crowded is how many records of one name a step may change: each is looked for among all of them.
const crowded = 1_000

// apply returns the records after steps; r stays as it is.
func (r records) apply(steps []rfc2136.Delta) (records, error) {
	next := records{soa: r.soa, names: make(map[string][]dns.RR, len(r.names)), count: r.count}
	for name, set := range r.names {
		next.names[name] = slices.Clip(set) // whoever appends to it gets another
	}
	for _, s := range steps {
		if s.From != next.soa.Serial {
			return records{}, errNotNext
		}
		for _, rr := range s.Deleted {
			name := dns.CanonicalName(rr.Header().Name)
			set := next.names[name]
			if len(set) > crowded {
				return records{}, fmt.Errorf("%s has too many records for a change of it", name)
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
				return records{}, fmt.Errorf("%s has too many records for a change of it", name)
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
