package answers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func snapshot(t testing.TB, s *Store, boot Boot) []byte {
	t.Helper()
	var b bytes.Buffer
	testutil.Must(t, s.Snapshot(&b, boot))
	return b.Bytes()
}

// first is the time at the start of boot 1.
var first = Boot{ID: [16]byte{1}}

func TestSnapshot(t *testing.T) {
	boot := func(id byte, since time.Duration) Boot { return Boot{ID: [16]byte{id}, Since: since} }
	for _, tc := range []struct {
		name    string
		at      Boot
		passes  time.Duration // by the wall clock
		then    Boot
		left    int // of 60 s
		unknown bool
	}{
		{name: "past its time", at: boot(1, time.Hour), passes: 90 * time.Second, then: boot(1, time.Hour+90*time.Second), left: -30},
		{name: "no boot's clock", passes: 20 * time.Second, unknown: true},
		{name: "no boot's clock then", passes: 20 * time.Second, then: boot(1, time.Hour), unknown: true},
		{name: "same boot", at: boot(1, time.Hour), passes: 20 * time.Second, then: boot(1, time.Hour+20*time.Second), left: 40},
		{name: "same boot, wall clock set forward", at: boot(1, time.Hour), passes: 24 * time.Hour, then: boot(1, time.Hour+20*time.Second), left: 40},
		{name: "same boot, wall clock stood still", at: boot(1, time.Hour), then: boot(1, time.Hour+30*time.Second), left: 30},
		{name: "same boot, its clock went back", at: boot(1, time.Hour), then: boot(1, time.Minute), unknown: true},
		{name: "another boot", at: boot(1, time.Hour), passes: 50 * time.Second, then: boot(2, 30*time.Second), unknown: true},
		// Off for hours, with a clock that went on where it had stopped: the uptime fits, and yet the answers are old.
		{name: "another boot, wall clock stood still meanwhile", at: boot(1, time.Hour), passes: 30 * time.Second, then: boot(2, 25*time.Second), unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewStore(0)
				s.Space(7).SetBounds([classes]int{}, time.Hour)
				k, e := put(t, s.Space(7), "a.example.", 60)
				snap := snapshot(t, s, tc.at)
				<-time.After(tc.passes)
				next := NewStore(0)
				done, err := next.Restore(bytes.NewReader(snap), tc.then)
				if err != nil || done.Unknown != tc.unknown {
					t.Fatalf("%+v, %v", done, err)
				}
				got, _ := next.Space(7).Get(k)
				if tc.unknown {
					if got != nil || done.Entries != 0 {
						t.Fatalf("taken over: %+v", done)
					}
					return
				}
				if got == nil || got.Left(next.Now()) != tc.left || got.blob != e.blob || got.TTL() != 60 {
					t.Fatalf("got %v, %+v", got, done)
				}
				if stale := tc.left <= 0; done.Entries != 1 || (done.Stale == 1) != stale {
					t.Errorf("%+v", done)
				}
			})
		})
	}
}

func TestRestoreKeepsNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, s := NewStore(0), NewStore(0)
		k, _ := put(t, old.Space(1), "a.example.", 60)
		snap := snapshot(t, old, first)
		<-time.After(time.Second)
		_, mine := put(t, s.Space(1), "a.example.", 30)
		if done, err := s.Restore(bytes.NewReader(snap), first); err != nil || done.Entries != 0 {
			t.Errorf("%+v, %v", done, err)
		}
		if got, _ := s.Space(1).Get(k); got != mine {
			t.Error("an older answer displaced a newer one")
		}
	})
}

// TestRestoreBroken: nothing of a snapshot that was changed in any way is restored.
func TestRestoreBroken(t *testing.T) {
	s := NewStore(0)
	for i := range 3 {
		put(t, s.Space(1), fmt.Sprintf("n%d.example.", i), 60)
	}
	good := snapshot(t, s, first)
	broken := map[string][]byte{"nothing": nil, "another program's": []byte("once upon a time there was a file that was not ours")}
	for n := range good {
		broken[fmt.Sprintf("cut at %d", n)] = good[:n]
		b := bytes.Clone(good)
		b[n] ^= 0x41
		broken[fmt.Sprintf("changed at %d", n)] = b
	}
	for name, b := range broken {
		next := NewStore(0)
		done, err := next.Restore(bytes.NewReader(b), first)
		if n, _ := next.Bytes(); !errors.Is(err, ErrSnapshot) || done.Entries != 0 || n != 0 {
			t.Errorf("%s: %+v, %v", name, done, err)
		}
	}
	if done, err := NewStore(0).Restore(bytes.NewReader(good), first); err != nil || done.Entries != 3 {
		t.Errorf("the good one: %+v, %v", done, err)
	}
}

func TestRestoreBounded(t *testing.T) {
	s := NewStore(0)
	for i := range 2000 {
		put(t, s.Space(1), fmt.Sprintf("n%d.example.", i), 60)
	}
	small := NewStore(50_000)
	_, err := small.Restore(bytes.NewReader(snapshot(t, s, first)), first)
	testutil.Must(t, err)
	if n, limit := small.Bytes(); n > limit || n < limit/2 {
		t.Errorf("%d bytes of %d", n, limit)
	}
}

// FuzzRestore reads arbitrary bytes. Everything restored must be an answer, and within the limits.
func FuzzRestore(f *testing.F) {
	s := NewStore(0)
	put(f, s.Space(1), "a.example.", 60)
	good := snapshot(f, s, first)
	f.Add(good[:len(good)-4])
	f.Add(good[:headerBytes])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// With the right checksum, so that the rest is read.
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		next := NewStore(1 << 20)
		if _, err := next.Restore(bytes.NewReader(b), first); err != nil {
			return
		}
		if n, limit := next.Bytes(); n > limit {
			t.Fatalf("%d bytes of %d", n, limit)
		}
		for _, sp := range next.all() {
			for i := range sp.shards {
				for c := range classes {
					for _, e := range sp.shards[i].index[c] {
						question, _, err := parse([]byte(e.blob[:e.size]), nil)
						if err != nil {
							t.Fatalf("kept % x: %v", e.blob, err)
						}
						for range 3 {
							e.AppendReply(nil, &Reply{Question: question, TTL: 1, Rotate: true})
						}
					}
				}
			}
		}
	})
}
