// Package offload lets somebody outside of the store, the kernel's program at pods' links, say the store's answers in its stead: it chooses
// which, says until when, and takes back what is said no more.
//
// It owns which answers are lent. It must never lend what the fast path would not have said at that moment, leave an answer with the
// borrower that the store replaced or dropped, or make a question wait.
//
// Failure policy: what cannot be lent is answered as if there were no borrower. A borrower that does not take an answer back is told to
// forget all, and is lent nothing more until the next Begin.
package offload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// Most is for how long an answer is lent at most. Nobody can take one back from a borrower that outlives its lender, so this is also for
// how long answers go on when the agent is dead (D-070).
const Most = 30 * time.Second

const (
	offersMost = 256             // that wait to be looked at; more are declined, and come again with the next hit
	lookEvery  = 5 * time.Second // while something is lent
	sample     = 16              // of what is lent, of which the least used one goes where there is no room
)

// Loan is what the borrower is told of an answer.
type Loan struct {
	Key   *msg.Key
	Entry *answers.Entry
	// Expires is when the answer's TTL is over, and Until when the borrower says it no more, on the clock of Borrower.Now.
	Expires, Until time.Duration
	Rotate         bool   // each answer begins with another address of the set
	Size           uint16 // of UDP answers, at most, for a client that names a larger one; what its OPT is answered
}

// Borrower is who says answers in the store's stead. Its methods may be called at the same time.
type Borrower interface {
	Now() time.Duration // on a clock that goes on while the machine sleeps
	Put(Loan) error     // in place of another answer to its question
	Remove(k *msg.Key) error
	Invalidate() error // forget all
	// Hits tells how often each answer was said since it was last told of, by Hits or HitsOf.
	Hits(each func(question string, hits uint64)) error
	// HitsOf is Hits of one question.
	HitsOf(k *msg.Key) (uint64, error)
}

// Lender chooses what is lent. Its methods may be called at the same time.
type Lender struct {
	store *answers.Store
	most  int // answers that are lent at one time

	open   atomic.Bool // offers are taken
	offers chan offer

	epoch atomic.Uint64 // of the chain that answers
	built atomic.Uint64 // of the one that is being built

	mu       sync.Mutex // guards the fields below; the store's locks come before it
	borrower Borrower   // nil: nobody
	lent     map[string]*loan
	fault    error         // why nothing is lent although somebody would borrow
	offset   time.Duration // of the borrower's clock from the store's
	refused  uint64        // answers that the borrower did not take
}

// loan is an answer that is lent.
type loan struct {
	entry  *answers.Entry
	gap    time.Duration // with which its hits count
	until  answers.Instant
	recent uint64 // hits between the last two looks
	told   uint64 // hits that Tell told of since the last look
}

// New makes a lender of the store's answers, of most at one time. Nothing is lent before Begin.
func New(store *answers.Store, most int) *Lender {
	l := &Lender{store: store, most: most, offers: make(chan offer, offersMost), lent: map[string]*loan{}}
	l.built.Store(1)
	return l
}

// Source is one way in which the answers of a space come to be said: a block of one chain. It offers what it has just said.
type Source struct {
	lender *Lender
	epoch  uint64
	Space  *answers.Space
	// Gap is the longest time between two hits that count as one popularity.
	Gap    time.Duration
	Rotate bool
	// Says returns until when an answer would be said without another look at the upstream, given all that is known of its question; ok
	// is false where it would not be said now. It must not wait.
	Says func(e, success, denial *answers.Entry, now answers.Instant) (until answers.Instant, ok bool)
}

// offer is an answer that was said, and the size that bounded it.
type offer struct {
	source *Source
	entry  *answers.Entry
	size   uint16
}

// Source makes s a source of the chain that is being built.
func (l *Lender) Source(s Source) *Source {
	s.lender, s.epoch = l, l.built.Load()
	return &s
}

// Open reports whether offers are of use. It costs a load.
func (s *Source) Open() bool { return s.lender.open.Load() }

// Offer offers an answer that was just said to somebody whom the borrower would have answered. It never waits and allocates nothing.
func (s *Source) Offer(e *answers.Entry, now answers.Instant, size uint16) {
	if !e.Ripe(now) {
		return
	}
	select {
	case s.lender.offers <- offer{s, e, size}:
	default:
		e.Decline()
	}
}

// Changed says that the chain whose sources were made last is about to answer: what was lent by the word of the one before is taken back,
// and nothing more is lent by it.
func (l *Lender) Changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch.Store(l.built.Load())
	l.built.Add(1)
	if l.borrower != nil {
		l.forget()
	}
}

// Begin lends to a borrower from now on, who has forgotten all that it had of others.
func (l *Lender) Begin(b Borrower) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.borrower, l.fault = b, nil
	l.offset = l.apart()
	l.store.OnRevoke(l.takeBack)
	if l.forget(); l.fault == nil {
		l.open.Store(true)
	}
	return l.fault
}

// End takes back all that is lent, and lends nothing more until the next Begin.
func (l *Lender) End() error {
	l.open.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.borrower == nil {
		return nil
	}
	l.forget() // before the store tells of nothing more: what it replaces meanwhile is taken back
	l.store.OnRevoke(nil)
	l.borrower = nil
	return l.fault
}

// Leave lends nothing more and leaves what is lent where it is, until it ends by itself: for an agent that ends.
func (l *Lender) Leave() {
	l.open.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.borrower = nil
}

// State is what is lent now.
type State struct {
	Lent    int
	Refused uint64 // answers that the borrower did not take
	Fault   error  // why nothing is lent although somebody would borrow
}

// State returns it.
func (l *Lender) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return State{Lent: len(l.lent), Refused: l.refused, Fault: l.fault}
}

// Run lends until ctx ends.
func (l *Lender) Run(ctx context.Context) {
	var look <-chan time.Time // nil while nothing is lent: there is nothing to look at
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-l.offers:
			l.take(o)
		case <-look:
			look = nil
			l.Look()
		}
		if l.State().Lent > 0 && look == nil {
			look = time.After(lookEvery)
		}
	}
}

// take lends what was offered, if it would still be said.
func (l *Lender) take(o offer) {
	o.source.Space.Offload(o.entry, func(success, denial *answers.Entry) (answers.Instant, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := l.store.Now()
		until, ok := o.source.Says(o.entry, success, denial, now)
		if until = min(until, now+answers.Instant(Most)); !ok || until <= now {
			return 0, false
		}
		if l.borrower == nil || l.fault != nil || o.source.epoch != l.epoch.Load() || !l.together() {
			return 0, false
		}
		k := o.entry.Key()
		name := string(question(&k))
		// Where it cannot be had, it is noted as lent for a while all the same, so that not every hit offers it.
		again := min(until, now+answers.Instant(lookEvery))
		if l.lent[name] == nil && len(l.lent) >= l.most && !l.makeRoom(now) {
			return again, true
		}
		at := l.borrower.Now()
		expires := o.entry.Stored() + answers.Instant(time.Duration(o.entry.TTL())*time.Second)
		err := l.borrower.Put(Loan{Key: &k, Entry: o.entry, Rotate: o.source.Rotate, Size: o.size,
			Expires: at + time.Duration(expires-now), Until: at + time.Duration(until-now)})
		if err != nil {
			l.refused++
			return again, true // the hits are ours
		}
		l.lent[name] = &loan{entry: o.entry, gap: o.source.Gap, until: until}
		return until, true
	})
}

// drift is how far the two clocks may move apart before they are taken for apart; a Keeper tells the store of no shorter sleep.
const drift = time.Second

func (l *Lender) apart() time.Duration { return l.borrower.Now() - time.Duration(l.store.Now()) }

// together reports whether the store's clock is right: it learns some seconds later than the borrower's that the machine slept, and takes
// answers for younger until then. mu is held.
func (l *Lender) together() bool {
	now := l.apart()
	if (now - l.offset).Abs() > drift {
		return false
	}
	l.offset = now
	return true
}

// question is the key's question alone: only questions without DO and CD are lent answers to.
func question(k *msg.Key) []byte { return k.Bytes()[:len(k.Bytes())-1] }

// takeBack implements answers.Store.OnRevoke.
func (l *Lender) takeBack(e *answers.Entry) {
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.lent[string(question(&k))]; one != nil && one.entry == e {
		l.remove(&k)
	}
}

// remove takes an answer back; mu is held. As long as an entry is noted as lent, whoever replaces it waits for mu, so that comes last.
func (l *Lender) remove(k *msg.Key) {
	var err error
	if l.borrower != nil {
		err = l.borrower.Remove(k)
	}
	name := string(question(k))
	l.lent[name].entry.Decline()
	delete(l.lent, name)
	if err != nil {
		l.forget()
		l.fail(fmt.Errorf("take an answer back: %w", err))
	}
}

// forget takes all back, in the order of remove; mu is held.
func (l *Lender) forget() {
	err := l.borrower.Invalidate()
	for _, one := range l.lent {
		one.entry.Decline()
	}
	clear(l.lent)
	if err != nil {
		l.fail(fmt.Errorf("take all answers back: %w", err))
	}
}

// fail ends lending until the next Begin; mu is held.
func (l *Lender) fail(err error) {
	l.open.Store(false)
	if l.fault == nil {
		l.fault = err
	}
}

// makeRoom takes back one of a few answers: one whose time is over, or the one with the fewest hits, unless all of them are in use.
func (l *Lender) makeRoom(now answers.Instant) bool {
	var least *loan
	left := sample
	for _, one := range l.lent { // in no order
		if one.until <= now {
			least = one
			break
		}
		if least == nil || one.recent < least.recent {
			least = one
		}
		if left--; left == 0 {
			break
		}
	}
	if least == nil || least.until > now && least.recent > 1 {
		return false
	}
	k := least.entry.Key()
	l.remove(&k)
	return l.fault == nil
}

// Look tells the store of the hits that the borrower had, so that what is in use is kept and fetched before it ends, and drops what is lent
// no more.
func (l *Lender) Look() {
	l.mu.Lock()
	b := l.borrower
	l.mu.Unlock()
	if b == nil {
		return
	}
	told := map[string]uint64{}
	err := b.Hits(func(question string, hits uint64) { told[question] = hits }) // without mu: a question may be waiting for it
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fail(fmt.Errorf("read hits: %w", err))
		return
	}
	now := l.store.Now()
	for name, one := range l.lent {
		one.count(now, told[name])
		one.recent, one.told = told[name]+one.told, 0
		if one.until <= now {
			k := one.entry.Key()
			l.remove(&k)
		}
	}
}

// Tell tells the store of the hits that the borrower had of e, if e is lent: for who is about to decide by them.
func (s *Source) Tell(e *answers.Entry) {
	l := s.lender
	k := e.Key()
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.lent[string(question(&k))]
	if one == nil || one.entry != e || l.borrower == nil {
		return
	}
	hits, err := l.borrower.HitsOf(&k)
	if err != nil {
		l.fail(fmt.Errorf("read hits: %w", err))
		return
	}
	one.count(l.store.Now(), hits)
	one.told += hits
}

// count notes hits that the borrower had.
func (one *loan) count(now answers.Instant, hits uint64) {
	if hits == 0 {
		return
	}
	for range min(hits, usesMost) {
		one.entry.Use()
	}
	if one.gap > 0 {
		one.entry.AddHits(now, one.gap, hits)
	}
}

// usesMost is as many hits as tell eviction that an answer is in use.
const usesMost = 3
