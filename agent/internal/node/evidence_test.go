package node

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
)

func TestPace(t *testing.T) {
	for renew, want := range map[time.Duration]time.Duration{
		250 * time.Millisecond: 500 * time.Millisecond, 150 * time.Millisecond: 600 * time.Millisecond, 100 * time.Millisecond: 500 * time.Millisecond,
		2 * time.Second: 2 * time.Second, 500 * time.Millisecond: 500 * time.Millisecond,
	} {
		n := New("a", plan.Plan{Terms: plan.Terms{Renew: renew, Lifetime: 800 * time.Millisecond}}, Parts{})
		if every, gap := n.Pace(); every != want || gap != 800*time.Millisecond {
			t.Errorf("renewed every %v: look every %v, gap %v", renew, every, gap)
		}
	}
}

// The evidence counts only under a lease that is held and was renewed within its lifetime.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New("a", plan.Plan{Terms: plan.Terms{Lifetime: 800 * time.Millisecond}}, Parts{})
		steering := netip.MustParseAddr("169.254.20.11")
		client := steer.Client{Source: netip.MustParseAddr("10.244.1.2"), Protocol: steer.UDP, Address: steering}
		check := func(when string, want bool) {
			t.Helper()
			if _, held := n.LeaseOf(client); held != want {
				t.Errorf("%s: held %v", when, held)
			}
		}
		check("unknown address", false)
		l := &targetLease{since: time.Now()}
		n.targets[target{Address: steering, Protocol: steer.UDP}] = l
		n.targets[target{Address: steering, Protocol: steer.TCP}] = &targetLease{held: true, lastOK: time.Now()}
		check("not held", false)
		l.held, l.lastOK = true, time.Now()
		check("held", true)
		if got, _ := n.LeaseOf(client); !got.Since.Equal(l.since) || !got.Renewed.Equal(l.lastOK) {
			t.Errorf("%+v", got)
		}
		<-time.After(time.Second) // of the test's own clock: the process was stopped
		check("lapsed, not noticed", false)
		n.noteRenewed(target{Address: steering, Protocol: steer.UDP})
		if got, _ := n.LeaseOf(client); !got.Since.Equal(time.Now()) {
			t.Errorf("renewed after it has lapsed, but held since %s before", time.Since(got.Since))
		}
	})
}
