package nft_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// withCounters makes a host table that has only two counters, which are not zero.
const withCounters = `
table inet neardns {
	counter delivered_udp { packets 1000 bytes 64000 }
	counter fallback_udp { packets 7 bytes 700 }
}
`

// 40 ADDs at once, each with a back end of its own for the host and for its pod, while two agents repair and another
// program damages the rules: at the end each rule is there once, and each counter has its value.
func TestEnsuresBesideRepair(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "race")
	ns.RunInput(withCounters, "nft", "-f", "-")
	pods := make([]*testutil.NetNS, 4)
	for i := range pods {
		pods[i] = testutil.NewNS(t, fmt.Sprintf("pod%d", i))
	}
	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	loop := func(f func() error) {
		beside.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	agent, successor := open(t, ns), open(t, ns)
	loop(func() error { return agent.Apply(host()) })
	loop(func() error { return successor.Apply(host()) })
	chains := []string{"switch4", "prerouting", "tcp6", "output"}
	var turn int
	loop(func() error {
		turn++
		_, err := ns.TryRun("", "nft", "flush chain inet neardns "+chains[turn%len(chains)])
		if err != nil && strings.Contains(err.Error(), "No such file") {
			err = nil // the table does not exist yet
		}
		return err
	})
	var adds errgroup.Group
	for i := range 40 {
		adds.Go(func() error {
			onHost, err := nft.Open(ns.FD())
			if err != nil {
				return err
			}
			inPod, err := nft.Open(pods[i%len(pods)].FD())
			if err != nil {
				return err
			}
			pod := steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}
			exempt := []netip.Addr{addr("10.244.0.1")}
			return errors.Join(onHost.Ensure(host()), onHost.Exempt(exempt, nil), onHost.Exempt(nil, exempt),
				inPod.Apply(pod), inPod.Verify(pod), onHost.Close(), inPod.Close())
		})
	}
	failed := adds.Wait()
	stop()
	beside.Wait()
	must(t, failed)
	must(t, agent.Apply(host()))
	must(t, agent.Verify(host()))
	for _, p := range pods {
		must(t, open(t, p).Verify(steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}))
	}
	counters, err := agent.Counters()
	must(t, err)
	testutil.Equal(t, "delivered_udp", steer.Counter{Packets: 1000, Bytes: 64000}, counters[steer.CounterDeliveredUDP])
	testutil.Equal(t, "fallback_udp", steer.Counter{Packets: 7, Bytes: 700}, counters[steer.CounterFallbackUDP])
	if got := ns.Run("nft", "list", "set", "inet", "neardns", "exempt4"); strings.Contains(got, "elements") {
		t.Errorf("left exempt:\n%s", got)
	}
}

// TestVerifyBesideRewrites: rules that another agent writes again meanwhile are no drift, though a dump may have some of both generations.
func TestVerifyBesideRewrites(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "rewrites")
	ours, other := open(t, ns), open(t, ns)
	testutil.Must(t, ours.Apply(host()))
	var rewrites errgroup.Group
	done := make(chan struct{})
	rewrites.Go(func() error {
		defer close(done)
		for range 300 {
			if err := other.Rewrite(host()); err != nil {
				return err
			}
		}
		return nil
	})
	for more := true; more; {
		var drift *steer.DriftError
		if err := ours.Verify(host()); errors.As(err, &drift) { // too many other transactions are no drift
			t.Error(err)
		}
		select {
		case <-done:
			more = false
		default:
		}
	}
	testutil.Must(t, rewrites.Wait())
}
