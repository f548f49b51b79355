package bpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/msg"
)

// kept is what the agent remembers of an answer's slot in the kernel maps. If section is "", the slot is empty.
type kept struct {
	section  string // the question section in lower case
	place    uint64 // as objectControl.place returns it
	reported uint64 // value of the slot's hit counter when Hits or HitsOf last read it
}

// place returns where the kernel map of places lists the answer with this hash: the lower 32 bits are the number of the bucket, the upper
// ones the tag that identifies the answer in the bucket.
func (c *objectControl) place(hash uint64) uint64 { return hash>>32<<32 | hash&uint64(c.Mask) }

// Now returns the time since boot, including suspend. The kernel program uses the same clock for the expiry of answers.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 1<<63 - 1 // every supported kernel has this clock; without it, treat all answers as expired
	}
	return time.Duration(t.Nano())
}

// Invalidate revokes all answers with one write to the map: it raises the generation.
func (l *Level) Invalidate() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next objectControl
	if err := l.objects.Controls.Lookup(uint32(0), &next); err != nil { // another process may have changed the kernel's control since Open
		return fmt.Errorf("read the control: %w", err)
	}
	if next.Generation++; next.Generation == 0 {
		next.Generation = 1
	}
	if err := l.objects.Controls.Put(uint32(0), &next); err != nil {
		return fmt.Errorf("write the control: %w", err)
	}
	l.control = next
	// The program ignores slots of the old generation. Free them.
	for at := range l.kept {
		if l.kept[at].section != "" {
			if err := l.forget(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// ErrFull means that no slot of the needed size is free, or that the answer's bucket is full. There is room once another answer is removed,
// which the Offloader does at the latest when it has expired.
var ErrFull = errors.New("no room for the answer in the kernel maps")

// Put adds an answer, or replaces the one with the same key. If the kernel program cannot serve the answer (ErrUnfit), or there is no room
// (ErrFull), Put removes the previous answer of that key.
func (l *Level) Put(a *Answer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s objectSlot
	if err := s.fill(a); err != nil {
		return errors.Join(err, l.remove(a.Key))
	}
	s.Generation, s.Turn = l.control.Generation, rand.Uint32() //nolint:gosec // the turn of rotated addresses is no secret
	small, place := s.small(), l.control.place(s.hash(&l.control))
	at, there := l.byPlace[place]
	if there && l.isSmall(at) != small { // the new answer needs a slot of the other size
		if err := l.clear(at); err != nil {
			return err
		}
		there = false
	}
	if !there {
		var err error
		if at, err = l.room(small); err != nil {
			return err
		}
	}
	if err := l.write(at, &s); err != nil {
		if !there {
			l.release(at)
		}
		return err
	}
	old := l.kept[at]
	l.kept[at] = kept{section: string(a.Key.Question()), place: place, reported: old.reported}
	if there {
		return nil
	}
	if err := l.lead(place, at); err != nil {
		l.kept[at] = kept{reported: old.reported}
		l.release(at)
		return err
	}
	l.byPlace[place] = at
	return nil
}

// isSmall reports whether a slot is a small one.
func (l *Level) isSmall(at int) bool { return at < int(l.control.Small) }

// kind returns the index in Level.free for small or large slots.
func kind(small bool) int {
	if small {
		return 0
	}
	return 1
}

// write writes a slot atomically.
func (l *Level) write(at int, s *objectSlot) error {
	slots, key := l.slot(at)
	if err := slots.Update(key, s.memory(l.isSmall(at)), ebpf.UpdateLock); err != nil {
		return fmt.Errorf("write slot %d: %w", at, err)
	}
	return nil
}

// slot returns the map that contains a slot, and the slot's key in that map.
func (l *Level) slot(at int) (*ebpf.Map, uint32) {
	if l.isSmall(at) {
		return l.objects.Smalls, uint32(at)
	}
	return l.objects.Slots, uint32(at) - l.control.Small
}

// lead writes into the kernel map of places that the answer at place (see objectControl.place) is in slot at. It returns ErrFull if the
// place's bucket is full.
func (l *Level) lead(place uint64, at int) error {
	b := &l.buckets[uint32(place)]
	way := slices.Index(b.Places[:], 0)
	if way < 0 {
		return ErrFull
	}
	return l.setPlace(place, way, uint64(at+1))
}

// setPlace writes the element with index way of the place's bucket. slot is a slot's number plus 1, or 0 to clear the element.
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

// room takes a free small or large slot.
func (l *Level) room(small bool) (int, error) {
	free := &l.free[kind(small)]
	n := len(*free)
	if n == 0 {
		return 0, ErrFull
	}
	at := (*free)[n-1]
	*free = (*free)[:n-1]
	return at, nil
}

func (l *Level) release(at int) {
	free := &l.free[kind(l.isSmall(at))]
	*free = append(*free, at)
}

// forget removes an answer from the kernel map of places and frees its slot. It does not clear the slot in the kernel.
func (l *Level) forget(at int) error {
	k := &l.kept[at]
	b := &l.buckets[uint32(k.place)]
	if way := slices.Index(b.Places[:], k.place>>32<<32|uint64(at+1)); way >= 0 {
		if err := l.setPlace(k.place, way, 0); err != nil {
			return err
		}
	}
	delete(l.byPlace, k.place)
	*k = kept{reported: k.reported}
	l.release(at)
	return nil
}

// Remove removes an answer by its key. Once it returns, no query is answered from it.
func (l *Level) Remove(k *msg.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remove(k)
}

func (l *Level) remove(k *msg.Key) error {
	at, there := l.find(k)
	if !there {
		return nil
	}
	return l.clear(at)
}

// clear is forget, and also clears the slot in the kernel. Otherwise the program, which may have just found the slot, uses it.
func (l *Level) clear(at int) error { return errors.Join(l.write(at, &objectSlot{}), l.forget(at)) }

// find returns the number of the slot with the answer for a key.
func (l *Level) find(k *msg.Key) (at int, there bool) {
	var s objectSlot
	if !s.setQuestion(k) {
		return 0, false
	}
	at, there = l.byPlace[l.control.place(s.hash(&l.control))]
	return at, there
}

// Hits calls each for every answer that had hits since they were last reported, by Hits or HitsOf. section is the query's question section
// in lower case. each must not call the level.
func (l *Level) Hits(each func(section string, hits uint64)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys, values := make([]uint32, len(l.kept)), make([]uint64, len(l.kept))
	n, err := l.objects.Heat.BatchLookup(new(ebpf.MapBatchCursor), keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // BatchLookup returns ErrKeyNotExist at the end of the map
		return fmt.Errorf("read hits: %w", err)
	}
	for i := range n {
		k := &l.kept[keys[i]]
		hits := values[i] - k.reported
		k.reported = values[i]
		if hits > 0 && k.section != "" {
			each(k.section, hits)
		}
	}
	return nil
}

// HitsOf returns the hits of one answer since they were last reported, by Hits or HitsOf.
func (l *Level) HitsOf(k *msg.Key) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, there := l.find(k)
	if !there {
		return 0, nil
	}
	var all uint64
	if err := l.objects.Heat.Lookup(uint32(at), &all); err != nil {
		return 0, fmt.Errorf("read hits of slot %d: %w", at, err)
	}
	hits := all - l.kept[at].reported
	l.kept[at].reported = all
	return hits, nil
}
