package healthcheck_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/pkg/testutil"
)

// many are checks of n addresses of one /16.
func many(net byte, n int) (out []healthcheck.Check) {
	for i := range n {
		out = append(out, healthcheck.Check{Address: netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}), Protocol: healthcheck.TCP, Port: 443})
	}
	return out
}

var ten = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

// TestStarved: a cluster with thousands of targets that never answer, each of which holds a probe's slot the longest, delays no other's
// probes, also where it publishes another cluster's addresses as its own. Those of a cluster that dies are sick in time, and well in time.
func TestStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var alive atomic.Bool
		alive.Store(true)
		c := checker(t, quiet, healthcheck.Options{Dial: func(ctx context.Context, _, at string) (net.Conn, error) {
			if at[:5] == "10.2." && alive.Load() {
				here, _ := net.Pipe()
				return here, nil
			}
			<-ctx.Done()
			return nil, errors.New("no")
		}})
		victim := many(2, 3)
		watched := c.Set("z.", map[string][]healthcheck.Check{"greedy": append(many(1, 5000), victim...), "victim": victim}, ten)
		if len(watched) != 5003 {
			t.Fatalf("%d targets are probed", len(watched))
		}
		until := func(what string, well bool, most time.Duration) {
			t.Helper()
			for begun := time.Now(); ; {
				n := 0
				for _, check := range victim {
					if watched[check].Well() == well {
						n++
					}
				}
				if n == len(victim) {
					return
				}
				if time.Since(begun) > most {
					t.Fatalf("%s: %d of %d after %s", what, n, len(victim), most)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		time.Sleep(5 * time.Minute)
		for range 5 {
			alive.Store(false)
			until("sick", false, 35*time.Second)
			alive.Store(true)
			until("well", true, 14*time.Second) // the next probe starts within 10 s after the last one started
		}
	})
}

// TestTooMany: where there are more targets than are probed, each cluster has its share, whichever zone it is in, and what a small one
// leaves is the others'. Targets that go on keep their place before new ones. Those that have none are checked no more.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards asked
		asked := map[string]map[string]bool{}
		c := checker(t, quiet, healthcheck.Options{Most: 100, Dial: func(_ context.Context, _, at string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			net := strings.Split(at, ".")[1]
			if asked[net] == nil {
				asked[net] = map[string]bool{}
			}
			asked[net][at] = true
			return nil, errors.New("no")
		}})
		probed := func() map[string]int { // within a minute
			mu.Lock()
			clear(asked)
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			out := map[string]int{}
			for net, all := range asked {
				out[net] = len(all)
			}
			return out
		}
		count := func(watched map[healthcheck.Check]*healthcheck.Target) map[string]int {
			out := map[string]int{}
			for check := range watched {
				out[fmt.Sprint(check.Address.As4()[1])]++
			}
			return out
		}
		greedy := map[string][]healthcheck.Check{"one": many(1, 1000)}
		first := c.Set("a.", greedy, ten)
		testutil.Equal(t, "alone", map[string]int{"1": 100}, count(first))
		testutil.Equal(t, "probed alone", map[string]int{"1": 100}, probed())
		for check, target := range first {
			if target.Well() {
				t.Fatalf("%v is well", check)
			}
		}

		second := c.Set("b.", map[string][]healthcheck.Check{"two": many(2, 10), "three": many(3, 400)}, ten)
		testutil.Equal(t, "another zone", map[string]int{"2": 10, "3": 45}, count(second))
		well := 0
		for _, target := range first {
			if target.Well() {
				well++
			}
		}
		if well != 55 {
			t.Errorf("%d targets that nobody asks any more are taken to be well, want 55", well)
		}
		testutil.Equal(t, "states", map[string]int{"well": 0, "sick": 45, "unknown": 55, "refused": 1310}, c.Counts())

		testutil.Equal(t, "probed next to another zone", map[string]int{"1": 45, "2": 10, "3": 45}, probed())

		// Nine come that are before all others in order, and one goes that was probed.
		greedy["one"] = append(many(0, 9), greedy["one"][1:]...)
		again := c.Set("a.", greedy, ten)
		testutil.Equal(t, "again", map[string]int{"0": 1, "1": 44}, count(again))
		for check, target := range again {
			if check.Address.As4()[1] == 1 && first[check] != target {
				t.Errorf("%v is another target than before", check)
			}
		}
		if gone := first[many(1, 1)[0]]; gone == nil || gone.Well() {
			t.Error("a target that no zone has any more was sick and is well")
		}
		greedy["one"] = append(many(0, 1), greedy["one"]...)
		for check := range c.Set("a.", greedy, ten) {
			if again[check] == nil {
				t.Errorf("%v took the place of one that was probed", check)
			}
		}
		greedy["one"] = greedy["one"][1:]
		c.Set("b.", nil, nil)
		testutil.Equal(t, "alone again", map[string]int{"0": 9, "1": 91}, count(c.Set("a.", greedy, ten)))
	})
}

// TestPerAddress: checks of one address are bounded, however many paths clusters name there, and the cluster with few checks keeps its own.
func TestPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int64
		c := checker(t, quiet, healthcheck.Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			probes.Add(1)
			return nil, errors.New("no")
		}})
		own := healthcheck.Check{Address: netip.MustParseAddr("10.2.0.1"), Protocol: healthcheck.HTTP, Port: 80, Host: "victim.example", Path: "/"}
		var flood []healthcheck.Check
		for i := range 1000 {
			check := own
			check.Path = fmt.Sprintf("/%d", i)
			flood = append(flood, check)
		}
		watched := c.Set("z.", map[string][]healthcheck.Check{"greedy": flood, "victim": {own}}, ten)
		if watched[own] == nil || len(watched) != 100 {
			t.Errorf("%d targets of one address, the victim's own: %v", len(watched), watched[own])
		}
		before := maps.Clone(watched)
		if watched = c.Set("z.", map[string][]healthcheck.Check{"greedy": flood, "victim": {own}}, ten); !maps.Equal(before, watched) {
			t.Error("other targets are probed, though nothing changed")
		}
		time.Sleep(10 * time.Second)
		probes.Store(0)
		time.Sleep(100 * time.Second)
		if n := probes.Load(); n < 900 || n > 1300 {
			t.Errorf("%d probes of one address in 100 s", n)
		}
	})
}
