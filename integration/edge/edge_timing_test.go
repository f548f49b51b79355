//go:build timing

package edge_test

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestTimingFollows: a change is at the edge within 2.5 s, and with NOTIFY as soon as the server sends it. The servers send it half a
// second (BIND) and a second after the change. NEARDNS_EDGE_CHANGES is how many changes are measured.
//
// State: TestFollows. Bound: TestFollow (fleet/edge/secondary).
func TestTimingFollows(t *testing.T) {
	changes, _ := strconv.Atoi(os.Getenv("NEARDNS_EDGE_CHANGES"))
	changes = cmp.Or(changes, 12)
	onPrimaries(t, func(t *testing.T, kind zoneserver.Kind, notify bool) {
		bound := 2500 * time.Millisecond
		if notify {
			bound = 1500 * time.Millisecond
			if kind == zoneserver.BIND {
				bound = 750 * time.Millisecond
			}
		}
		var times []time.Duration
		follow(t, kind, notify, changes, func(wait func()) {
			written := time.Now()
			wait()
			times = append(times, time.Since(written))
		})
		slices.Sort(times)
		t.Logf("%d changes at an edge: median %s, 99 %% within %s, last %s", changes, times[changes/2], times[(changes*99+99)/100-1], times[changes-1])
		// A busy machine may hold a third of them up.
		if slowest := times[changes-changes/3-1]; slowest > bound*testutil.Slowness() {
			t.Errorf("more than a third of %d changes took longer than %s: %v", changes, bound, times)
		}
	})
}
