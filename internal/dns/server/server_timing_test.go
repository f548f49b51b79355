//go:build timing

package server_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// TestTimingSilentUpstream: if the first upstream is silent, a query waits for less than a second, and soon for none of it.
// State: TestSilentUpstream (this package). Bound: the tests of internal/dns/forward.
func TestTimingSilentUpstream(t *testing.T) {
	good := newUpstream(t, address("10.0.0.4"))
	cfg := config(t, good)
	cfg.Cluster = servers(blackhole(t), good.addr)
	start(t, cfg)
	for i, atOnce := 0, 0; atOnce < 3; i++ {
		began := time.Now()
		wantA(t, ask(t, "udp", addressOf(cfg), question(fmt.Sprintf("n%d.cluster.local.", i), mdns.TypeA)), "10.0.0.4")
		took := time.Since(began)
		if took > time.Second {
			t.Errorf("query %d took %s", i, took)
		}
		if atOnce++; took > 250*time.Millisecond { // a query that is sent to the first one waits 300 ms for it
			atOnce = 0
		}
		if i > 38 {
			t.Fatalf("after %d queries the silent upstream still comes first", i)
		}
	}
}

// TestTimingSlowName: a name that takes its upstream 2.4 s is answered at the first try, a slower one fails after 4.5 s.
// State: TestSlowNameIsNotKeptAsFailed (this package). Bound: TestSlowNames (internal/dns/forward).
func TestTimingSlowName(t *testing.T) {
	const budget = 4500 * time.Millisecond
	var silent atomic.Bool
	silent.Store(true)
	say := address("192.0.2.7")
	up := newUpstream(t, func(q *mdns.Msg) *mdns.Msg {
		switch q.Question[0].Name {
		case "slow.example.":
			<-time.After(2400 * time.Millisecond)
		case "slower.example.":
			if silent.Load() {
				return nil
			}
		}
		return say(q)
	})
	cfg := config(t, up)
	start(t, cfg)
	begun := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { wantA(t, ask(t, "udp", addressOf(cfg), question("slow.example.", mdns.TypeA)), "192.0.2.7") })
	wg.Go(func() {
		m := ask(t, "udp", addressOf(cfg), question("slower.example.", mdns.TypeA))
		if took := time.Since(begun); m.Rcode != mdns.RcodeServerFailure || took < budget-500*time.Millisecond || took > budget+500*time.Millisecond {
			t.Errorf("%v after %s, want SERVFAIL after %s", m, took, budget)
		}
	})
	wg.Wait()
	silent.Store(false)
	begun = time.Now()
	wantA(t, ask(t, "udp", addressOf(cfg), question("slower.example.", mdns.TypeA)), "192.0.2.7")
	if took := time.Since(begun); took > 3*time.Second { // not by another 4.5 s
		t.Errorf("the next try took %s", took)
	}
}
