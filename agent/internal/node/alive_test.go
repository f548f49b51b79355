package node

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
)

// TestAliveTellsOfHungProbes has one probe never come back: the lease is gone, and only a restart helps. A lease that cannot be had is
// no reason for one.
func TestAliveTellsOfHungProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		n := begin(t, w, plainPlan())
		pass(10 * time.Minute)
		if alive, why := n.Alive(); !alive {
			t.Errorf("idle for ten minutes: %s", why)
		}
		w.answers(prober.Result{Failure: prober.Refused})
		pass(10 * time.Minute)
		if alive, why := n.Alive(); !alive {
			t.Errorf("without a lease: %s", why)
		}
		hang := make(chan struct{})
		w.set(func() {
			w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
				if p == steer.TCP {
					<-hang
				}
				return prober.Result{Instance: self}
			}
		})
		pass(30 * time.Second)
		if alive, why := n.Alive(); !alive {
			t.Errorf("after half a minute: %s", why)
		}
		pass(time.Minute)
		if alive, why := n.Alive(); alive || !strings.Contains(why, steer1.String()+"/tcp has hung") {
			t.Errorf("alive %t, %q", alive, why)
		}
		close(hang)
		pass(time.Second)
		if alive, why := n.Alive(); !alive {
			t.Errorf("the probe came back: %s", why)
		}
	})
}
