package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestNoLeaseBeforeAnAnswer starts a node that cannot query its upstreams, while kube-dns answers pods.
func TestNoLeaseBeforeAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		refused := errors.New("10.96.0.10:53 over udp: operation not permitted")
		w.asked = func() error { return refused }
		n := begin(t, w, plainPlan())
		pass(time.Minute)
		if w.count("renew") > 0 {
			t.Error("a lease was renewed before a question was answered")
		}
		if ready, why := n.Ready(); ready || !strings.Contains(why, "the agent cannot query") {
			t.Errorf("ready %t, %q", ready, why)
		}
		if s := n.Status(); !strings.Contains(s.CannotAsk, "not permitted") || s.Faults["asking"] == "" {
			t.Errorf("status: %+v", s)
		}
		w.set(func() { w.asked = func() error { return nil } })
		pass(3 * time.Second)
		wantReady(t, n, "after an answer")
	})
}

// TestLeaseGoesWithAsking takes the agent's way to kube-dns away while pods have theirs, by a client's trouble and without.
func TestLeaseGoesWithAsking(t *testing.T) {
	for trouble, within := range map[bool]time.Duration{true: 3 * time.Second, false: queryIdle + 4*time.Second} {
		t.Run(fmt.Sprint(trouble), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.asked = func() error { return nil }
				n := begin(t, w, plainPlan())
				pass(2 * time.Second)
				if ready, why := n.Ready(); !ready {
					t.Fatalf("not ready: %s", why)
				}
				w.forget()
				w.set(func() { w.asked = func() error { return errors.New("silent") } })
				if trouble {
					w.trouble <- struct{}{}
				}
				pass(within)
				if got := w.count("withdraw"); got != 2 {
					t.Errorf("%d leases withdrawn, want both: %v", got, w.calls())
				}
				testutil.Equal(t, fmt.Sprintf("losses counted: %v", w.calls()), 2, w.count("count-lost upstream"))
				w.forget()
				pass(10 * time.Second)
				if w.count("renew") > 0 {
					t.Error("renewed without a way to ask")
				}
				w.set(func() { w.asked = func() error { return nil } })
				pass(5 * time.Second)
				wantReady(t, n, "after the way is back")
			})
		})
	}
}

// TestOutageOfKubeDNS takes kube-dns from the agent and from pods. For 10 s no lease changes; after that, Trials withdraw the leases from
// time to time.
func TestOutageOfKubeDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		n := begin(t, w, plainPlan())
		pass(2 * time.Second)
		dead := errors.New("silent")
		w.set(func() {
			w.asked, w.prove, w.fromPod = func() error { return dead }, func() error { return dead }, func() error { return dead }
		})
		w.forget()
		w.trouble <- struct{}{}
		pass(10 * time.Second)
		if w.count("withdraw") > 0 {
			t.Errorf("a lease changed in an outage: %v", w.calls())
		}
		if ready, why := n.Ready(); ready {
			t.Errorf("ready (%s) while nobody can be asked", why)
		}
		pass(3 * time.Minute)
		if turns := w.count("withdraw 169.254.20.11/udp"); turns < 3 || turns > 4 {
			t.Errorf("%d turns in three minutes", turns)
		}
		w.set(func() { w.fromPod = func() error { return nil } }) // a policy that admits pods
		pass(time.Minute)
		w.forget()
		pass(time.Minute)
		if w.count("renew") > 0 {
			t.Error("renewed while only pods' own addresses are answered")
		}
	})
}

// TestClientsAnswersCount: while clients' queries are answered, an unanswered query of the agent's own has no effect.
func TestClientsAnswersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		begin(t, w, plainPlan())
		pass(2 * time.Second)
		w.set(func() { w.asked = func() error { return errors.New("silent") } })
		w.forget()
		for range 60 { // for example a flood of dead names, while others are answered
			w.set(func() { w.heard = time.Now() })
			select {
			case w.trouble <- struct{}{}:
			default:
			}
			pass(500 * time.Millisecond)
		}
		if w.count("withdraw") > 0 {
			t.Errorf("withdrawn: %v", w.calls())
		}
	})
}
