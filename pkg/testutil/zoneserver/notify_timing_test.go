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

// TestTimingNotify has how soon each server sends a NOTIFY after a change, and after another right behind it: Knot and PowerDNS take a
// second, and BIND is set to wait as little, where by default it takes five.
//
// State: TestTraps (pkg/testutil/zoneserver). The bound is the servers' own.
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
				start := time.Now() // not before: a server that is locked takes the message late
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
