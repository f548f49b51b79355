package node

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestLate(t *testing.T) {
	const lifetime = 800 * time.Millisecond
	for took, want := range map[time.Duration]prober.Failure{
		time.Millisecond: prober.None, 100 * time.Millisecond: prober.None, 200 * time.Millisecond: prober.None,
		201 * time.Millisecond: prober.Slow, lifetime: prober.Slow, lifetime + 1: prober.Timeout, 6 * time.Second: prober.Timeout,
	} {
		if got, err := lateAnswer(took, lifetime); got != want || (err == nil) != (want == prober.None) {
			t.Errorf("%s: %q, %v; want %q", took, got, err, want)
		}
	}
}

// changes returns how many leases were counted as lost, and how often the UDP lease was withdrawn.
func changes(w *world) (lost, withdrawn int) {
	return w.count("count-lost"), w.count("withdraw 169.254.20.11/udp")
}

// overload answers UDP late while the lease is held and at once while it is not: what a starved agent's prober sees, whose
// load goes and comes with the lease.
func overload(n *Node, took time.Duration) func(netip.Addr, steer.Protocol) prober.Result {
	return func(_ netip.Addr, p steer.Protocol) prober.Result {
		r := prober.Result{Instance: self, Took: time.Millisecond}
		for _, l := range n.Status().Leases {
			if p == steer.UDP && l.Protocol == "udp" && l.Held {
				r.Took = took
			}
		}
		return r
	}
}

// TestOverloadDoesNotFlap: an agent that is too slow whenever it serves loses its lease, and each time waits longer before it tries again.
func TestOverloadDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.set(func() { w.answer = overload(n, 300*time.Millisecond) })
		pass(600 * time.Millisecond)
		if lost, withdrawn := changes(w); lost != 1 || withdrawn != 1 || w.count("count-lost slow") != 1 {
			t.Errorf("lost %d, withdrawn %d after three slow answers: %v", lost, withdrawn, n.Status().Leases)
		}
		if _, why := n.Ready(); !strings.Contains(why, "later than 200ms") {
			t.Errorf("reason: %q", why)
		}
		w.forget()
		pass(time.Minute)
		if lost, _ := changes(w); lost < 2 || lost > 3 {
			t.Errorf("lost %d times in the first minute, want rests of 8, 16 and 32 s", lost)
		}
		w.forget()
		pass(10 * time.Minute)
		if lost, _ := changes(w); lost < 7 || lost > 10 {
			t.Errorf("lost %d times in ten minutes, want about one a minute", lost)
		}
		if w.count("withdraw 169.254.20.11/tcp") > 0 {
			t.Error("TCP was as quick as ever and lost its lease")
		}
		// The load is gone for good: after one rest the lease is held and its losses are forgotten.
		w.answers(prober.Result{Instance: self})
		pass(2*time.Minute + 2*time.Second)
		wantReady(t, n, "after the load")
		w.forget()
		w.answers(prober.Result{Failure: prober.Refused, Err: errors.New("no socket listens")})
		pass(time.Second)
		w.answers(prober.Result{Instance: self})
		pass(500 * time.Millisecond)
		wantReady(t, n, "a single loss after a good minute is not forgiven")
	})
}

// TestLostProbeIsNoLostLease: the probe after one that got lost renews in time, whatever renew and lifetime are.
func TestLostProbeIsNoLostLease(t *testing.T) {
	for _, rhythm := range []plan.Terms{{Renew: 250 * time.Millisecond, Lifetime: 800 * time.Millisecond},
		{Renew: 150 * time.Millisecond, Lifetime: 800 * time.Millisecond},
		{Renew: 20 * time.Millisecond, Lifetime: 100 * time.Millisecond}, {Renew: time.Second, Lifetime: 3 * time.Second}} {
		t.Run(rhythm.Renew.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s := plainPlan()
				s.Terms = rhythm
				n := begin(t, w, s)
				pass(3 * s.Terms.Renew)
				drop := true
				w.set(func() {
					w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
						if p == steer.UDP && drop {
							drop = false
							return prober.Result{Failure: prober.Timeout, Err: errors.New("no answer")}
						}
						return prober.Result{Instance: self}
					}
				})
				for range 20 {
					pass(s.Terms.Renew / 3)
					if ready, why := n.Ready(); !ready {
						t.Fatalf("one lost probe cost the lease: %s", why)
					}
				}
				if drop || w.count("count-lost") > 0 {
					t.Errorf("dropped %t, lost %d", !drop, w.count("count-lost"))
				}
			})
		})
	}
}

// TestSilenceCostsOneLease: a socket that no program reads any more costs its own address and protocol the lease, and no other.
func TestSilenceCostsOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s, second := newWorld(), plainPlan(), netip.MustParseAddr("10.96.0.11")
		s.Redirects = append(s.Redirects, steer.Redirect{ClusterDNS: second, Steering: steer2})
		s.Server.Addresses = s.Addresses()
		n := begin(t, w, s)
		pass(time.Second)
		wantReady(t, n, "all answer")
		w.set(func() {
			w.answer = func(a netip.Addr, p steer.Protocol) prober.Result { // a: the cluster DNS address, which is probed
				if a == second && p == steer.UDP {
					return prober.Result{Failure: prober.Timeout, Err: errors.New("no answer")}
				}
				return prober.Result{Instance: self}
			}
		})
		pass(1500 * time.Millisecond)
		var lost []string
		for _, l := range n.Status().Leases {
			if !l.Held {
				lost = append(lost, l.Address.String()+"/"+l.Protocol)
			}
		}
		testutil.Equal(t, "leases lost", []string{steer2.String() + "/udp"}, lost)
		if w.count("count-lost") != 1 || w.count("count-lost timeout") != 1 || w.count("withdraw") > 0 {
			t.Errorf("want one lost to silence, and none withdrawn: %v", w.calls())
		}
		if _, why := n.Ready(); !strings.Contains(why, "no lease for "+steer2.String()+" over udp") {
			t.Errorf("reason: %q", why)
		}
		w.answers(prober.Result{Instance: self})
		pass(time.Second)
		if ready, _ := n.Ready(); ready {
			t.Error("no rest after a loss to silence")
		}
		pass(2 * time.Second)
		wantReady(t, n, "answers again")
	})
}
