//go:build timing

package zonewriter_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/neardns/neardns/fleet/zones/zonewriter"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
	"github.com/neardns/neardns/pkg/tick"
)

// A server without increments sends the whole zone for each change. The longer that takes, the more rarely a cluster that wants nothing
// looks. State: TestJoinChangeLeave, which reads such a server's whole zone. Bound: TestCostlyLooks.
func TestTimingCostlyZone(t *testing.T) {
	zoneserver.Require(t, zoneserver.PowerDNS)
	s := zoneserver.Start(t, zoneserver.PowerDNS, zoneserver.Config{})
	const cost = 100 * time.Millisecond
	wire := new(tap)
	quiet := start(t, s, zonewriter.Options{Identity: id(1), Heartbeat: time.Minute, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		tick.Pause(ctx, cost) // part of each query's time
		return wire.dial(ctx, network, address)
	}})
	quiet.set(t, simple("www", "192.0.2.1"))
	quiet.clean(t)
	wire.take()
	busy := start(t, s, zonewriter.Options{Identity: id(2), Heartbeat: time.Minute})
	busy.set(t, simple("www", "192.0.2.2"))
	busy.clean(t)
	testutil.Eventually(t, func() error {
		wire.mu.Lock()
		defer wire.mu.Unlock()
		read := slices.Index(wire.kinds, "IXFR")
		if read < 0 {
			return fmt.Errorf("what changed is not read: %v", wire.kinds)
		}
		next := slices.Index(wire.kinds[read:], "SOA")
		if next < 0 {
			return fmt.Errorf("no look follows: %v", wire.kinds)
		}
		if rest := wire.times[read+next].Sub(wire.times[read]); rest < 16*cost {
			t.Errorf("the next look follows after %s, though each whole zone takes %s", rest, cost)
		}
		return nil
	})
}
