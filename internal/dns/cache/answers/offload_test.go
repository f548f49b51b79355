package answers

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestShouldOffer: an entry is offered at its second hit, once, and again after it was declined or the offload's time is over.
func TestShouldOffer(t *testing.T) {
	e := new(Entry)
	ripe := func(now Instant, want bool) {
		t.Helper()
		e.Use()
		testutil.Equal(t, fmt.Sprint("offered at ", now), want, e.ShouldOffer(now))
	}
	ripe(0, false)
	ripe(0, true)
	ripe(0, false) // it is being offered
	e.Decline()
	ripe(0, true)
	e.offload.Store(int64(10*time.Second) + offloadUntil)
	ripe(Instant(9*time.Second), false)
	ripe(Instant(10*time.Second), true)
	if e.uses.Load() != maxUses || e.isOffloaded() {
		t.Errorf("%d uses, offloaded %t", e.uses.Load(), e.isOffloaded())
	}
	e.uses.Store(1)
	if e.ShouldOffer(0) || e.uses.Load() != 1 {
		t.Errorf("eviction's count and the offer are not apart: %d", e.uses.Load())
	}
}

// TestMark: a mark is set once, changes neither the count of uses nor the offload, and is not inherited. A marked entry is offered at its
// next hit.
func TestMark(t *testing.T) {
	e := new(Entry)
	if e.Marked() || !e.Mark() || e.Mark() || !e.Marked() {
		t.Error("a mark can be set twice, or is not seen")
	}
	if !e.ShouldOffer(0) {
		t.Error("a marked entry is not offered at its first hit")
	}
	e.Use()
	e.uses.Store(3)
	e.offload.Store(int64(time.Hour) + offloadUntil)
	if !e.Marked() || !e.isOffloaded() || e.uses.Load() != 3 {
		t.Errorf("marked %t, offloaded %t, %d uses", e.Marked(), e.isOffloaded(), e.uses.Load())
	}
	heir := new(Entry)
	heir.inherit(e)
	if heir.Marked() || heir.isOffloaded() || heir.uses.Load() != 3 {
		t.Errorf("what replaces it: marked %t, offloaded %t, %d uses", heir.Marked(), heir.isOffloaded(), heir.uses.Load())
	}
	e.Unmark()
	if e.Marked() || !e.isOffloaded() || e.uses.Load() != 3 || !e.Mark() {
		t.Errorf("marked %t, offloaded %t, %d uses", e.Marked(), e.isOffloaded(), e.uses.Load())
	}
}

// TestHeat: several hits that are reported together count like single ones, up to the maximum, and after a long gap the count begins again.
func TestHeat(t *testing.T) {
	e := new(Entry)
	const gap = time.Minute
	at := Instant(0)
	for i, step := range []struct {
		after time.Duration
		n     uint64
		want  int
	}{{time.Second, 1, 1}, {time.Second, 40, 41}, {gap, 2, 43}, {gap + time.Second, 3, 3}, {0, 1 << 40, 1<<hitsBits - 1}, {0, 1, 1<<hitsBits - 1}} {
		at += Instant(step.after)
		testutil.Equal(t, fmt.Sprintf("hits of step %d", i), step.want, e.AddHits(at, gap, step.n))
		if hits, last := e.Heat(); hits != step.want || last != at {
			t.Errorf("step %d: %d hits, the last at %s", i, hits, time.Duration(last))
		}
	}
}

// entryOf is an answer to a key's query, of a class.
func entryOf(t *testing.T, k *msg.Key, class Class) *Entry {
	t.Helper()
	e, err := NewEntry(k, class, answer(t, nameOf(k), dns.TypeA), 60)
	testutil.Must(t, err)
	return e
}

func keyOf(t *testing.T, name string) *msg.Key {
	t.Helper()
	k, _ := key(t, name, dns.TypeA)
	return k
}

// nameOf returns a key's name, which must have a single label of one letter.
func nameOf(k *msg.Key) string { return string(k.Name()[1:2]) + "." }

// offloadMinute offloads an entry for a minute.
func offloadMinute(sp *Space, e *Entry) (called bool) {
	sp.Offload(e, func(success, denial *Entry) (Instant, bool) {
		called = success == e || denial == e
		return sp.store.Now() + Instant(time.Minute), true
	})
	return called
}

// TestOnRevoke: before an offloaded entry leaves the store for any reason, it is revoked, once.
func TestOnRevoke(t *testing.T) {
	for name, end := range map[string]func(sp *Space, k *msg.Key, e *Entry){
		"replaced":                   func(sp *Space, k *msg.Key, _ *Entry) { sp.Put(k, entryOf(t, k, Success)) },
		"denied under the same name": func(sp *Space, k *msg.Key, _ *Entry) { sp.Put(k, entryOf(t, k, Denial)) },
		"removed":                    func(sp *Space, _ *msg.Key, e *Entry) { sp.Remove(e) },
		"evicted":                    func(sp *Space, _ *msg.Key, _ *Entry) { sp.store.SetLimit(1) },
		"its chain is gone":          func(sp *Space, _ *msg.Key, _ *Entry) { sp.store.Space(2).Retain(); sp.store.Sweep() },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore(0)
			sp, k := s.Space(1), keyOf(t, "a.")
			e := entryOf(t, k, Success)
			sp.Put(k, e)
			returned := 0
			s.OnRevoke(func(got *Entry) {
				if got == e {
					returned++
				}
			})
			if !offloadMinute(sp, e) {
				t.Fatal("the entry was not offloaded")
			}
			got := e.Key()
			testutil.Equal(t, "the key of the entry", k.Bytes(), got.Bytes())
			end(sp, k, e)
			testutil.Equal(t, "times revoked", 1, returned)
			if s.OnRevoke(nil); name != "denied under the same name" && offloadMinute(sp, e) {
				t.Error("offloaded although it is gone")
			}
		})
	}
}

// TestHeirIsOffered: an entry that replaces an offloaded one is offered at its first hit.
func TestHeirIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(0)
		sp, k := s.Space(1), keyOf(t, "a.")
		for _, lend := range []bool{true, false} {
			e, next := entryOf(t, k, Success), entryOf(t, k, Success)
			sp.Put(k, e)
			e.ShouldOffer(s.Now())
			if !e.ShouldOffer(s.Now()) {
				t.Fatal("not ripe")
			}
			if lend {
				offloadMinute(sp, e)
			}
			sp.Put(k, next)
			if !next.ShouldOffer(s.Now()) {
				t.Errorf("lent before: %t; the next answer is not offered", lend)
			}
			sp.Remove(next)
		}
	})
}
