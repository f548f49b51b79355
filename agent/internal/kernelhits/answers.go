package kernelhits

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/wire"
)

// kept is what is known of a slot. The zero value is an empty one's.
type kept struct {
	group    uint32
	question string // in lower case
	hash     uint64
	expires  time.Duration // since boot
	told     uint64        // hits that Hits told of
	looked   uint64        // hits when eviction looked
}

func keptOf(s *objectSlot, generation uint32) kept {
	if s.Generation != generation {
		return kept{}
	}
	return kept{group: s.Group, question: s.question(), hash: s.Hash, expires: time.Duration(s.Expires)}
}

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
	next := l.control
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
	s.Hash = s.hash(&l.control)
	at, there := l.byHash[s.Hash]
	if !there {
		var err error
		if at, err = l.room(); err != nil {
			return err
		}
	}
	if err := l.objects.Slots.Update(uint32(at), &s, ebpf.UpdateLock); err != nil {
		return fmt.Errorf("write slot %d: %w", at, err)
	}
	old := l.kept[at]
	l.kept[at] = keptOf(&s, s.Generation)
	l.kept[at].told, l.kept[at].looked = old.told, old.looked
	if there {
		return nil
	}
	if err := l.objects.Places.Put(s.Hash, &objectPlace{Slot: uint32(at)}); err != nil {
		l.kept[at] = kept{told: old.told}
		l.free = append(l.free, at)
		return fmt.Errorf("write a place: %w", err)
	}
	l.byHash[s.Hash] = at
	return nil
}

// room returns a free slot, made free if need be.
func (l *Level) room() (int, error) {
	if n := len(l.free); n > 0 {
		at := l.free[n-1]
		l.free = l.free[:n-1]
		return at, nil
	}
	now := Now()
	// Once around finds a slot that was not used since the hand was there, or comes back to the first, whose hits were noted by then.
	// If that one was used meanwhile, too, it goes all the same.
	for range len(l.kept) {
		k := &l.kept[l.hand]
		if k.expires <= now {
			break
		}
		var hits uint64
		if err := l.objects.Heat.Lookup(uint32(l.hand), &hits); err != nil {
			return 0, fmt.Errorf("read hits of slot %d: %w", l.hand, err)
		}
		if hits == k.looked {
			break
		}
		k.looked = hits
		l.hand = (l.hand + 1) % len(l.kept)
	}
	at := l.hand
	l.hand = (l.hand + 1) % len(l.kept)
	if err := l.forget(at); err != nil {
		return 0, err
	}
	l.free = l.free[:len(l.free)-1]
	return at, nil
}

// forget takes an answer out of the places and frees its slot.
func (l *Level) forget(at int) error {
	k := &l.kept[at]
	if err := l.objects.Places.Delete(k.hash); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete a place: %w", err)
	}
	delete(l.byHash, k.hash)
	*k = kept{told: k.told, looked: k.looked}
	l.free = append(l.free, at)
	return nil
}

// Remove ends the answer to a question. When it has returned, no question is answered by it.
func (l *Level) Remove(group uint32, k *wire.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remove(group, k)
}

func (l *Level) remove(group uint32, k *wire.Key) error {
	q, plain := question(k)
	if !plain || len(q) < 5 || len(q)-4 > nameMost {
		return nil
	}
	s := objectSlot{Group: group, NameSize: uint16(len(q) - 4)}
	words(s.Name[:], q[:len(q)-4])
	s.TypeClass = uint32(q[len(q)-4]) | uint32(q[len(q)-3])<<8 | uint32(q[len(q)-2])<<16 | uint32(q[len(q)-1])<<24
	at, there := l.byHash[s.hash(&l.control)]
	if !there {
		return nil
	}
	// The program may have found the slot already: it is emptied, not only left.
	if err := l.objects.Slots.Update(uint32(at), &objectSlot{}, ebpf.UpdateLock); err != nil {
		return fmt.Errorf("empty slot %d: %w", at, err)
	}
	return l.forget(at)
}

// Len is how many answers there are, expired ones included.
func (l *Level) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byHash)
}

// Hits tells how often each answer was given since Hits was called last, where it was. The question is in wire form and lower case.
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
