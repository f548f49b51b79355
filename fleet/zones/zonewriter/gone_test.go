package zonewriter

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// A user removes a dead cluster by the command while this process removes it too: no host that is already gone is sent again.
func TestRemovedMeanwhile(t *testing.T) {
	mine := Published(t, me, publication("a", "192.0.2.1"))
	synctest.Test(t, func(t *testing.T) {
		updates := 0
		p := newPublisher(t, Options{Heartbeat: time.Minute, Dial: testutil.Piped(func(c *dns.Conn, m *dns.Msg) {
			var zone []dns.RR
			if m.Opcode == dns.OpcodeUpdate {
				updates++
			} else {
				zone = slices.Concat([]dns.RR{soa(t, 1)}, mine, []dns.RR{soa(t, 1)}) // without the dead cluster
			}
			testutil.Check(t, testutil.Reply(c, m, zone...))
		})})
		p.state = parsed(t, 1, slices.Concat(mine, Published(t, other, publication("a", "192.0.2.2")), Published(t, other, publication("b", "192.0.2.2")))...)
		if !p.removeOne(t.Context(), other.Cluster, []string{other.Cluster}) || updates != 2 {
			t.Errorf("%d updates were sent, want 2: for host a and for the heartbeat", updates)
		}
	})
}

// While a dead cluster's records are kept, because its addresses may still work, they are not looked at in each round.
func TestKeptWaits(t *testing.T) {
	for heartbeat, most := range map[time.Duration]time.Duration{time.Minute: time.Minute, zone.MaxPeriod: 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			p := newPublisher(t, Options{Heartbeat: heartbeat, Works: func(zone.Claim) bool { calls++; return true }})
			p.state = parsed(t, 1, Published(t, other, publication("a", "192.0.2.2"))...)
			goesOn := p.removeOne(t.Context(), other.Cluster, []string{other.Cluster})
			if wait := time.Until(p.removal); !goesOn || calls != 1 || wait < most/2 || wait > latest(most) {
				t.Errorf("goes on: %t, %d calls, next after %s, want about %s", goesOn, calls, wait, most)
			}
		})
	}
}

// Records that another writer takes away are written again at once, and then later each time. A change waits for none of that.
func TestRepairPause(t *testing.T) {
	p, h, now := &Publisher{o: Options{Validate: time.Hour}}, &host{}, time.Unix(0, 0)
	for i, shortest := range []time.Duration{0, pause * 8 / 10, pause * 16 / 10, pause * 32 / 10} {
		h.status.Programmed = true
		if waits := p.gone(h, 0, now); waits != (i > 0) || i > 0 && h.next.Sub(now) < shortest {
			t.Errorf("gone %d times: waits: %t, until %v", i+1, waits, h.next)
		}
		now = h.next
	}
	h.status.Programmed = true
	if !p.gone(h, 0, now) {
		t.Fatal("a fifth repair does not wait")
	}
	h.set++
	if p.gone(h, 0, now) {
		t.Error("a change waits for the repair")
	}
}
