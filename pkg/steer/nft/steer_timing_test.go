//go:build timing

package nft_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/tick"
)

// loadRounds, in the environment, is how many pairs of loads are measured.
const loadRounds = "NEARDNS_LOAD_ROUNDS"

// load measures how long loading the rules takes, and removes them again.
func (l *loader) load(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	l.r.Node.Host.RunInput(l.rules, l.proxy.Loader(true)...)
	took := time.Since(start)
	l.clean(t)
	return took
}

// renewEvery is shorter than the agent's default, 250 ms.
const renewEvery = 150 * time.Millisecond

// While another program loads very many rules and holds the commit mutex for seconds, the lease is renewed within its lifetime all the
// time and kube-dns gets no query.
//
// State: TestLeaseUnderLoad. Bound: TestLostProbeIsNoLostLease (agent/internal/node).
func TestTimingLeaseIsRenewedUnderLoad(t *testing.T) {
	modesOfLoad(t, 20, 0, func(t *testing.T, l *loader) {
		pod := l.r.Steered("pod")
		l.r.Addresses()
		l.r.Listen()
		if gap, fellBack := l.renewUnderLoad(t, pod.NetNS); gap > steer.DefaultLifetime || fellBack > 0 {
			t.Errorf("lease of %v under load: no renewal for %v, kube-dns got %d queries", steer.DefaultLifetime, gap, fellBack)
		}
	})
}

// renewUnderLoad renews and sends queries while the rules are loaded; it returns the longest time between two renewals and how many
// queries the agent did not answer.
func (l *loader) renewUnderLoad(t *testing.T, pod *testutil.NetNS) (gap time.Duration, fellBack int) {
	t.Helper()
	r := l.r
	stop := r.keepRenewing()
	loaded := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := r.Node.Host.TryRun(l.rules, l.proxy.Loader(true)...)
		loaded <- err
	}()
	c, err := testutil.Dial(pod, "udp", r.ClusterDNS()[0], testutil.AskOptions{})
	must(t, err)
	defer c.Close()
	asked := 0
	for loading := true; loading; asked++ {
		answer, err := c.Ask("a.cluster.local", dns.TypeTXT)
		if err != nil || answer.Who != "AGENT" {
			t.Logf("query %d: %v, %v", asked, answer, err)
			fellBack++
		}
		select {
		case err := <-loaded:
			must(t, err)
			loading = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	gap = stop()
	t.Logf("loaded in %v; %d queries, %d fell back; longest time between renewals %v", time.Since(start), asked, fellBack, gap)
	l.clean(t)
	return gap, fellBack
}

// Renewals slow such a load by a tenth at most: rounds with and without them in turn, and the shortest of each kind are compared.
//
// State: TestLeaseUnderLoad. Bound: none, it compares the load with and without renewals.
func TestTimingLoadIsNotSlowedDown(t *testing.T) {
	modesOfLoad(t, 20, 0, func(t *testing.T, l *loader) {
		r := l.r
		r.Addresses()
		r.Listen()
		var shortest [2]time.Duration
		for round := range fromEnv(t, loadRounds, 6) {
			for turn := range 2 {
				with := (round + turn) % 2
				stop := func() time.Duration { return 0 }
				if with == 1 {
					stop = r.keepRenewing()
				}
				took := l.load(t)
				stop()
				if round == 0 || took < shortest[with] {
					shortest[with] = took
				}
			}
		}
		ratio := float64(shortest[1]) / float64(shortest[0])
		t.Logf("without %v, with renewals %v: ratio %.3f", shortest[0], shortest[1], ratio)
		if ratio > 1.1 {
			t.Errorf("loading takes %v without and %v with renewals, at most 1.1 times as long is allowed", shortest[0], shortest[1])
		}
	})
}

// keepRenewing renews as the agent does, until the function that it returns is called, which returns the longest time between two
// renewals.
func (r *nftRig) keepRenewing() (stop func() time.Duration) {
	r.t.Helper()
	r.Renew()
	ctx, cancel := context.WithCancel(r.t.Context())
	longest := make(chan time.Duration, 1)
	go func() {
		var gap time.Duration
		for last := time.Now(); tick.Pause(ctx, renewEvery); last = time.Now() {
			for _, a := range r.Ours() {
				if err := errors.Join(r.Lease.Renew(a, steer.UDP), r.Lease.Renew(a, steer.TCP)); err != nil {
					r.t.Error(err)
				}
			}
			gap = max(gap, time.Since(last))
		}
		longest <- gap
	}()
	stop = sync.OnceValue(func() time.Duration {
		cancel()
		return <-longest
	})
	r.t.Cleanup(func() { stop() })
	return stop
}

// A lease ends with its lifetime, and one that is renewed in time never does.
//
// State: TestSwitchAfterALapse, TestRenewalExtendsALease. Bound: TestTrace, where leases lapse on a virtual clock.
func TestTimingLease(t *testing.T) {
	testutil.RequireRoot(t)
	const lifetime, precision = 400 * time.Millisecond, 50 * time.Millisecond // the kernel counts in jiffies
	h := host()
	h.Lifetime = lifetime
	ns, backend := node(t, h)
	lease := openLease(t, ns)
	for range 24 {
		must(t, lease.Renew(redirect4.Steering, steer.UDP))
		<-time.After(lifetime / 8)
		if got := holding(t, backend); len(got) != 1 {
			t.Fatalf("leases %v although they are renewed", got)
		}
	}
	renewed := time.Now()
	must(t, lease.Renew(redirect4.Steering, steer.UDP))
	testutil.Eventually(t, func() error {
		if got := holding(t, backend); len(got) > 0 {
			return fmt.Errorf("still granted: %q", got)
		}
		return nil
	})
	if took := time.Since(renewed); took < lifetime-precision || took > lifetime+2*precision {
		t.Errorf("the lease lasted %v, not %v", took, lifetime)
	}
}

// If the agent hangs or its link is deleted, clients wait for one lifetime at most.
//
// State: TestSwitchAfterALapse. Bound: TestTrace, where leases lapse on a virtual clock.
func TestTimingSwitchAfterALapse(t *testing.T) {
	const query = 50 * time.Millisecond
	for what, harm := range harms() {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP}, func(h *steer.Host) { h.Lifetime = steer.DefaultLifetime })
			pod := r.Steered("pod")
			servers := append(r.ClusterDNS(), r.Local()...)
			r.Serve()
			harm(r)
			harmed := time.Now()
			for _, server := range servers {
				testutil.Eventually(t, func() error {
					_, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeA, "udp", testutil.AskOptions{Timeout: query})
					return err
				})
			}
			if took := time.Since(harmed); took > steer.DefaultLifetime+time.Duration(2+len(servers))*query {
				t.Errorf("no answer for %v, lifetime %v", took, steer.DefaultLifetime)
			}
		})
	}
}

// If a killed agent's lease is still granted, the node's own processes wait for one lifetime at most.
//
// State: TestHostProcesses. Bound: TestTrace, where leases lapse on a virtual clock.
func TestTimingHostProcessesAfterAKill(t *testing.T) {
	const query = 50 * time.Millisecond
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP}, intercepting, func(h *steer.Host) { h.Lifetime = steer.DefaultLifetime })
	r.Serve()
	r.Kill()
	killed := time.Now()
	for _, s := range r.ClusterDNS() {
		testutil.Eventually(t, func() error {
			_, err := testutil.Ask(r.Node.Host, s, "a.cluster.local", dns.TypeA, "udp", testutil.AskOptions{Timeout: query})
			return err
		})
	}
	if took := time.Since(killed); took > steer.DefaultLifetime+4*query {
		t.Errorf("host processes waited %v for a killed agent, lifetime %v", took, steer.DefaultLifetime)
	}
}
