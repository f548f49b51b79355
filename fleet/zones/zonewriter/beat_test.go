package zonewriter

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// latest returns the longest duration that about can return.
func latest(d time.Duration) time.Duration { return d + d/5 }

// TestBeatTable applies each outcome in each state of the fence, with and without a heartbeat in the zone.
func TestBeatTable(t *testing.T) {
	const period = time.Minute
	now := time.Unix(1_800_000_000, 0)
	for before := started; before <= barred; before++ {
		for o := range outcomes {
			for _, there := range []bool{false, true} {
				b := beat{fence: before, counter: 7}
				b.on(o, part{there: there}, period, now)
				fence, lost := before, o == beatLost || o == messageLost
				switch {
				case o == beatAccepted:
					fence = barred
				case lost:
					fence = unanswered
				}
				in := fmt.Sprintf("fence %d, outcome %d, heartbeat in the zone %t: %+v", before, o, there, b)
				if b.fence != fence || b.counter != 7 {
					t.Errorf("%s: want fence %d", in, fence)
				}
				if b.due.IsZero() == (o == beatAccepted) || b.due.After(now.Add(latest(period))) {
					t.Errorf("%s: the next heartbeat is due at %s", in, b.due)
				}
				if b.rest.IsZero() == (o == beatRefused || o == beatLost) || b.rest.After(now.Add(latest(period/4))) {
					t.Errorf("%s: rests until %s", in, b.rest)
				}
				if want := lost && !there; b.keep.IsZero() == want || want && !b.keep.Equal(now.Add(rfc2136.Fudge)) {
					t.Errorf("%s: keeps the heartbeat until %s", in, b.keep)
				}
			}
		}
	}
}

// TestBeatForeign: a heartbeat under this cluster's ID is another writer's if it has another instance, or a counter that this process never
// sent. Heartbeats that failed may be in the zone, up to the one sent last.
func TestBeatForeign(t *testing.T) {
	for _, c := range []struct {
		ours    beat
		found   zone.Beat
		foreign bool
	}{
		{beat{fence: barred, counter: 7}, zone.Beat{Instance: "i", Counter: 6}, false},
		{beat{fence: barred, counter: 7}, zone.Beat{Instance: "i", Counter: 7}, false},
		{beat{fence: barred, counter: 7}, zone.Beat{Instance: "i", Counter: 8}, true},
		{beat{fence: unanswered, counter: 7}, zone.Beat{Instance: "i", Counter: 8}, false},
		{beat{fence: barred}, zone.Beat{Instance: "i", Counter: 8}, false},
		{beat{fence: started}, zone.Beat{Instance: "j", Counter: 8}, true},
	} {
		b := c.ours
		b.observe(&zone.State{Beats: map[string]zone.Beat{me.Cluster: c.found}}, me)
		if (b.foreign != nil) != c.foreign {
			t.Errorf("%+v in the zone, %+v here: foreign %t", c.found, c.ours, !c.foreign)
		}
	}
}

// TestBeatNeeded decides in each state, at each side of each time.
func TestBeatNeeded(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for bits := range 1 << 7 {
		is := func(bit int) bool { return bits>>bit&1 == 1 }
		at := func(past bool) time.Time {
			return now.Add(map[bool]time.Duration{true: -time.Second, false: time.Second}[past])
		}
		z := part{there: is(0), mine: is(1), wants: is(2), left: is(3) && !is(2)}
		rested, due, kept := is(4), is(5), is(6)
		for fence := started; fence <= barred; fence++ {
			b := beat{fence: fence, rest: at(rested), due: at(due), keep: at(kept)}
			got := b.needed(z, now)
			in := fmt.Sprintf("fence %d, %+v, rested %t, due %t, kept %t", fence, z, rested, due, kept)
			switch {
			case !rested && got:
				t.Errorf("%s: a heartbeat although the last one failed", in)
			case rested && fence == unanswered && !got:
				t.Errorf("%s: nothing bars a message without an answer", in)
			case rested && fence == started && (z.there || z.mine) && !got:
				t.Errorf("%s: nothing bars the messages of a predecessor", in)
			case fence != unanswered && !z.there && !z.mine && got:
				t.Errorf("%s: a heartbeat of a cluster that has nothing in the zone", in)
			case rested && fence == barred && (z.mine || z.there && z.wants) && got != due:
				t.Errorf("%s: want a heartbeat when it is due", in)
			case rested && fence == barred && z.there && !z.mine && !z.wants && got != (z.left && kept):
				t.Errorf("%s: the heartbeat has no use: want it deleted once no message may arrive, if this process has left", in)
			}
		}
	}
}

// TestBeatKept loses a cluster's first publication, after which its host is in a conflict. The lost message has no heartbeat as a
// prerequisite, so the heartbeat goes on until that message can no longer arrive, and is deleted only then.
func TestBeatKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPublisher(t, Options{Heartbeat: 5 * time.Second})
		p.state = parsed(t, 1)
		testutil.Must(t, p.Set(publication("www", "192.0.2.1")))
		p.fence()
		for begun := time.Now(); time.Since(begun) < rfc2136.Fudge; time.Sleep(time.Second) {
			if !p.beatDue() {
				continue
			}
			changes := p.beatChanges(true)
			if last := changes[len(changes)-1]; last.Header().Class != dns.ClassINET {
				t.Fatalf("the heartbeat is deleted after %s", time.Since(begun))
			}
			p.state = parsed(t, 1, changes[len(changes)-1])
			p.beatSent(nil)
		}
		time.Sleep(latest(p.o.Heartbeat))
		if changes := p.beatChanges(true); !p.beatDue() || len(changes) != 1 || changes[0].Header().Class != dns.ClassANY {
			t.Errorf("the heartbeat stays: %v", changes)
		}
	})
}

// TestBeatWalks goes every way through six rounds, in each of which a message with the heartbeat has any outcome, and another message may be
// lost before. The clock moves to what is due next, as the loop's does.
func TestBeatWalks(t *testing.T) {
	const period = time.Minute
	var walk func(b beat, z part, now, lastTaken time.Time, rounds int)
	walk = func(b beat, z part, now, lastTaken time.Time, rounds int) {
		if rounds == 0 {
			return
		}
		for _, lost := range []bool{false, true} {
			b, now := b, now
			if lost {
				b.on(messageLost, z, period, now)
			}
			for !b.needed(z, now) {
				next := now.Add(period)
				for _, t := range []time.Time{b.due, b.rest} {
					if t.After(now) && t.Before(next) {
						next = t
					}
				}
				now = next
				if wait := now.Sub(lastTaken); wait > latest(period)+time.Duration(6)*latest(period/4) {
					t.Fatalf("a cluster that lives is silent for %s: %+v", wait, b)
				}
			}
			for o := beatAccepted; o <= beatLost; o++ {
				b, z, lastTaken := b, z, lastTaken
				b.counter++
				b.on(o, z, period, now)
				if b.fence == barred && o != beatAccepted && lost {
					t.Fatalf("a lost message is barred by outcome %d: %+v", o, b)
				}
				if o == beatAccepted {
					z.there, lastTaken = true, now
					if b.needed(z, now) || b.late(period, now) > 0 {
						t.Fatalf("another heartbeat at once: %+v", b)
					}
				} else if o != beatOutrun && b.needed(z, now) {
					t.Fatalf("no pause after outcome %d: %+v", o, b)
				}
				walk(b, z, now, lastTaken, rounds-1)
			}
		}
	}
	start := time.Unix(1_800_000_000, 0)
	walk(beat{fence: started}, part{mine: true, wants: true}, start, start, 6)
}
