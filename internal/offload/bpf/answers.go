package bpf

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/msg"
)

// kept is what is known of a slot. The zero value is an empty one's.
type kept struct {
	group    uint32
	question string        // in lower case
	place    uint64        // as in Level.byPlace
	expires  time.Duration // since boot
	told     uint64        // hits that Hits told of
	looked   uint64        // hits when eviction looked
}

func keptOf(s *objectSlot, c *objectControl) kept {
	if s.Generation != c.Generation {
		return kept{}
	}
	return kept{group: s.Group, question: s.question(), place: c.place(s.hash(c)), expires: time.Duration(s.Expires)}
}

// place is what the places know of a hash: the tag, and below it the bucket's number.
func (c *objectControl) place(hash uint64) uint64 { return hash>>32<<32 | hash&uint64(c.Mask) }

// Now is the time since boot, suspend included: the clock of answers.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 1<<63 - 1 // no such kernel; nothing is valid then
	}
	return time.Duration(t.Nano())
}

// Generation is the present one. An answer is taken only while its generation is.
func (l *Level) Generation() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.control.Generation
}

// Invalidate ends all answers at once, by one write, and those that are on their way to Put.
func (l *Level) Invalidate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next objectControl
	if err := l.objects.Controls.Lookup(uint32(0), &next); err != nil { // another process may have been here
		return fmt.Errorf("read the control: %w", err)
	}
	if next.Generation++; next.Generation == 0 {
		next.Generation = 1
	}
	if err := l.objects.Controls.Put(uint32(0), &next); err != nil {
		return fmt.Errorf("write the control: %w", err)
	}
	l.control = next
	// What stood in the places is no answer any more, and found by nobody here.
	for at := range l.kept {
		if l.kept[at].question != "" {
			if err := l.forget(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// Put lets the kernel give an answer, in place of the one to the same question. If there is no room, an answer that was not given
// lately has to go. An answer of another generation than the present one is dropped. ErrUnfit: the kernel cannot give it; the one that
// it gave to the question is gone, too.
func (l *Level) Put(a *Answer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.put(a)
}

func (l *Level) put(a *Answer) error {
	var s objectSlot
	if err := s.fill(a); err != nil {
		return errors.Join(err, l.remove(a.Group, a.Key))
	}
	if a.Generation != l.control.Generation {
		return nil
	}
	s.Generation, s.Turn = l.control.Generation, rand.Uint32() //nolint:gosec // whose turn it is, is no secret
	small, place := s.small(), l.control.place(s.hash(&l.control))
	was, there := l.byPlace[place]
	at := was
	if !there || l.isSmall(was) != small {
		var err error
		if at, err = l.room(small); err != nil {
			return err
		}
	}
	if err := l.write(at, &s); err != nil {
		return err
	}
	old := l.kept[at]
	l.kept[at] = keptOf(&s, &l.control)
	l.kept[at].told, l.kept[at].looked = old.told, old.looked
	if there && was == at {
		return nil
	}
	if err := l.lead(place, at); err != nil {
		l.kept[at] = kept{told: old.told}
		l.release(at)
		return err
	}
	l.byPlace[place] = at
	if !there {
		return nil
	}
	// The answer has another size than the one before, whose slot ends now: it may have been found.
	if err := l.write(was, &objectSlot{}); err != nil {
		return err
	}
	l.kept[was] = kept{told: l.kept[was].told, looked: l.kept[was].looked}
	l.release(was)
	return nil
}

// isSmall tells of which kind a slot is.
func (l *Level) isSmall(at int) bool { return at < int(l.control.Small) }

// kind is the index of what there is for each kind of slot.
func kind(small bool) int {
	if small {
		return 0
	}
	return 1
}

// write writes a slot as a whole.
func (l *Level) write(at int, s *objectSlot) error {
	slots, key := l.slot(at)
	if err := slots.Update(key, s.memory(l.isSmall(at)), ebpf.UpdateLock); err != nil {
		return fmt.Errorf("write slot %d: %w", at, err)
	}
	return nil
}

// read reads a slot as a whole.
func (l *Level) read(at int, s *objectSlot) error {
	slots, key := l.slot(at)
	if err := slots.LookupWithFlags(key, s.memory(l.isSmall(at)), ebpf.LookupLock); err != nil {
		return fmt.Errorf("read slot %d: %w", at, err)
	}
	return nil
}

// slot is where a slot stands.
func (l *Level) slot(at int) (*ebpf.Map, uint32) {
	if l.isSmall(at) {
		return l.objects.Smalls, uint32(at)
	}
	return l.objects.Slots, uint32(at) - l.control.Small
}

// lead lets a place lead to a slot. Where its bucket is full, the answer of the bucket goes that was given least of late.
func (l *Level) lead(place uint64, at int) error {
	b := &l.buckets[uint32(place)]
	way := slices.IndexFunc(b.Places[:], func(p uint64) bool { return p != 0 && p>>32 == place>>32 })
	if way < 0 {
		way = slices.Index(b.Places[:], 0)
	}
	if way < 0 {
		least := uint64(math.MaxUint64)
		for i, p := range b.Places {
			hits, err := l.recent(int(uint32(p)) - 1)
			if err != nil {
				return err
			}
			if hits < least {
				way, least = i, hits
			}
		}
		if err := l.forget(int(uint32(b.Places[way])) - 1); err != nil {
			return err
		}
	}
	return l.setPlace(place, way, uint64(at+1))
}

// setPlace writes one place of a bucket: the number of a slot and 1, or 0.
func (l *Level) setPlace(place uint64, way int, slot uint64) error {
	b := l.buckets[uint32(place)]
	if b.Places[way] = 0; slot != 0 {
		b.Places[way] = place>>32<<32 | slot
	}
	if err := l.objects.Places.Put(uint32(place), &b); err != nil {
		return fmt.Errorf("write a place: %w", err)
	}
	l.buckets[uint32(place)] = b
	return nil
}

// recent tells how often an answer was given since recent was called for it last; 0 if it is over.
func (l *Level) recent(at int) (uint64, error) {
	k := &l.kept[at]
	var hits uint64
	if err := l.objects.Heat.Lookup(uint32(at), &hits); err != nil {
		return 0, fmt.Errorf("read hits of slot %d: %w", at, err)
	}
	since := hits - k.looked
	if k.looked = hits; k.expires <= Now() {
		since = 0
	}
	return since, nil
}

// room returns a free slot of a kind, made free if need be.
func (l *Level) room(small bool) (int, error) {
	free, hand := &l.free[kind(small)], &l.hand[kind(small)]
	if n := len(*free); n > 0 {
		at := (*free)[n-1]
		*free = (*free)[:n-1]
		return at, nil
	}
	first, past := 0, int(l.control.Small)
	if !small {
		first, past = past, len(l.kept)
	}
	next := func() int {
		at := first + *hand
		*hand = (*hand + 1) % (past - first)
		return at
	}
	// Once around finds a slot that was not used since the hand was there, or comes back to the first, whose hits were noted by then.
	// If that one was used meanwhile, too, it goes all the same.
	at := next()
	for range past - first {
		if hits, err := l.recent(at); err != nil {
			return 0, err
		} else if hits == 0 {
			break
		}
		at = next()
	}
	if err := l.forget(at); err != nil {
		return 0, err
	}
	*free = (*free)[:len(*free)-1]
	return at, nil
}

// release makes a slot free.
func (l *Level) release(at int) {
	free := &l.free[kind(l.isSmall(at))]
	*free = append(*free, at)
}

// forget takes an answer out of the places and frees its slot.
func (l *Level) forget(at int) error {
	k := &l.kept[at]
	b := &l.buckets[uint32(k.place)]
	if way := slices.Index(b.Places[:], k.place>>32<<32|uint64(at+1)); way >= 0 {
		if err := l.setPlace(k.place, way, 0); err != nil {
			return err
		}
	}
	delete(l.byPlace, k.place)
	*k = kept{told: k.told, looked: k.looked}
	l.release(at)
	return nil
}

// Remove ends the answer to a question. When it has returned, no question is answered by it.
func (l *Level) Remove(group uint32, k *msg.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remove(group, k)
}

func (l *Level) remove(group uint32, k *msg.Key) error {
	at, there := l.find(group, k)
	if !there {
		return nil
	}
	// The program may have found the slot already: it is emptied, not only left.
	if err := l.write(at, &objectSlot{}); err != nil {
		return err
	}
	return l.forget(at)
}

// find returns the slot of the answer to a question.
func (l *Level) find(group uint32, k *msg.Key) (at int, there bool) {
	q, do, cd := k.Question()
	if do || cd || len(q) < 5 || len(q)-4 > nameMost {
		return 0, false
	}
	s := objectSlot{Group: group, NameSize: uint8(len(q) - 4)}
	words(s.Data[:wordsOf(q[:len(q)-4])], q[:len(q)-4])
	s.TypeClass = uint32(q[len(q)-4]) | uint32(q[len(q)-3])<<8 | uint32(q[len(q)-2])<<16 | uint32(q[len(q)-1])<<24
	at, there = l.byPlace[l.control.place(s.hash(&l.control))]
	return at, there
}

// Len is how many answers there are, expired ones included.
func (l *Level) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byPlace)
}

// Hits tells how often each answer was given since it was last told of, where it was. The question is in wire form and lower case.
// each must not call the level.
func (l *Level) Hits(each func(group uint32, question string, hits uint64)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys, values := make([]uint32, len(l.kept)), make([]uint64, len(l.kept))
	n, err := l.objects.Heat.BatchLookup(new(ebpf.MapBatchCursor), keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // which it says when it has read all
		return fmt.Errorf("read hits: %w", err)
	}
	for i := range n {
		k := &l.kept[keys[i]]
		hits := values[i] - k.told
		k.told = values[i]
		if hits > 0 && k.question != "" {
			each(k.group, k.question, hits)
		}
	}
	return nil
}

// HitsOf tells how often the answer to one question was given since it was last told of, by Hits or HitsOf.
func (l *Level) HitsOf(group uint32, k *msg.Key) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, there := l.find(group, k)
	if !there {
		return 0, nil
	}
	var all uint64
	if err := l.objects.Heat.Lookup(uint32(at), &all); err != nil {
		return 0, fmt.Errorf("read hits of slot %d: %w", at, err)
	}
	hits := all - l.kept[at].told
	l.kept[at].told = all
	return hits, nil
}
