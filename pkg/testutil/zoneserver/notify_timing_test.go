//go:build timing

package zoneserver_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestTimingNotify measures how soon each server sends a NOTIFY after a change, and after another change that follows at once. Knot and
// PowerDNS take a second. BIND is set to send it without a delay; by default, it waits five seconds before the second one.
//
// State: TestTraps. Bound: none, the times are the servers' own.
func TestTimingNotify(t *testing.T) {
	testutil.RequireRoot(t)
	for _, kind := range zoneserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			zoneserver.Require(t, kind)
			heard, secondary := notified(t)
			c := twoClusters
			c.Notify = []netip.AddrPort{secondary}
			s := zoneserver.Start(t, kind, c)
			// What the server sends at its start comes first.
			for quiet := false; !quiet; {
				select {
				case <-heard:
				case <-time.After(7 * time.Second):
					quiet = true
				}
			}
			for i := range 2 {
				send(t, s, s.Operator(), insert(fmt.Sprintf("%s 60 A 192.0.2.%d", host("notify"), i)))
				start := time.Now() // not earlier: send waits while the server is locked
				testutil.Receive(t, heard)
				took := time.Since(start)
				t.Logf("after %v", took)
				if took > 4*time.Second {
					t.Errorf("notified after %v", took)
				}
			}
		})
	}
}
