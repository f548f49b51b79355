package node

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func TestOrderOfStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		wantReady(t, n, "after a second")
		first := map[string]int{}
		for i, c := range w.calls() {
			if word := strings.Fields(c)[0]; first[word] == 0 {
				first[word] = i + 1
			}
		}
		if first["link"] >= first["start"] || first["rules"] >= first["start"] || first["start"] >= first["renew"] {
			t.Errorf("wrong order of start: %v", w.calls())
		}
		w.forget()
		w.end()
		want := []string{"withdraw 169.254.20.11/tcp", "withdraw 169.254.20.11/udp", "stop", "close-prober"}
		got := w.calls()
		slices.Sort(got[:2])
		testutil.Equal(t, "order of stop", want, got)
	})
}

// An agent of another version may find all pods' tables different.
func TestLeasesDoNotWaitForPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.tending = time.Minute
		n := begin(t, w, plainPlan())
		pass(time.Second)
		wantReady(t, n, "while the pods' tables are repaired")
		pass(w.tending)
	})
}

func TestNoLeaseWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["start"] = errors.New("listen on udp 169.254.20.11:53: address in use: held by dnsmasq")
		n := begin(t, w, plainPlan())
		pass(time.Minute)
		if w.count("renew") > 0 {
			t.Error("a lease was renewed without a server")
		}
		// Tried again with a bounded back-off: about 250 ms, 500 ms, … 10 s.
		if tries := w.count("start"); tries < 6 || tries > 20 {
			t.Errorf("%d tries in a minute", tries)
		}
		if ready, why := n.Ready(); ready || !strings.Contains(why, "held by dnsmasq") {
			t.Errorf("ready %t, why %q", ready, why)
		}
		want := map[string]error{"link": nil, "rules": nil, "firewall": nil, "prober": nil}
		w.set(func() {
			testutil.Equal(t, "recorded", want, w.checked)
			delete(w.fails, "start")
		})
		pass(12 * time.Second)
		wantReady(t, n, "after the port came free")
	})
}

// A rebuilt table has no lease, so every target is probed at once instead of at its turn.
func TestRepairedRulesAreProvenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := plainPlan()
		begin(t, w, s)
		pass(time.Second)
		now := time.Duration(time.Now().UnixNano()) % s.Terms.Renew
		pass(s.Terms.Renew - now + s.Terms.Renew/10) // just after a turn
		w.forget()
		w.set(func() { w.drift = []string{"the table is missing"} })
		w.ticks <- struct{}{}
		pass(time.Millisecond)
		synctest.Wait()
		if w.count("rules") != 1 || w.count("renew") != 2 {
			t.Errorf("after a repair: %v", w.calls())
		}
		w.forget()
		w.ticks <- struct{}{} // nothing to repair
		pass(minGap + time.Millisecond)
		if w.count("rules") != 1 || w.count("renew") != 0 {
			t.Errorf("after a look: %v", w.calls())
		}
	})
}

func TestDeadServerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		w.die()
		pass(time.Second)
		if ready, why := n.Ready(); !ready || w.count("start") != 1 {
			t.Errorf("ready %t (%s) after %d starts", ready, why, w.count("start"))
		}
	})
}

// Without the host's rules there is no lease to withdraw.
func TestWithdrawalWithoutSwitchIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var logs strings.Builder
		begin(t, w, plainPlan(), func(n *Node) { n.Log = slog.New(slog.NewTextHandler(&logs, nil)) })
		pass(time.Second)
		w.set(func() { w.fails["withdraw"] = steer.ErrNoSwitch })
		w.answers(prober.Result{Failure: prober.Refused, Err: errors.New("no socket listens")})
		pass(2 * time.Second)
		withdrawals := w.count("withdraw")
		w.end()
		if withdrawals == 0 || strings.Contains(logs.String(), "cannot withdraw the lease") {
			t.Errorf("after %d withdrawals:\n%s", withdrawals, &logs)
		}
	})
}

func TestMissingSwitchIsMendedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		w.set(func() {
			w.fails["renew"] = steer.ErrNoSwitch
			w.drift = []string{"table inet neardns is missing or empty"}
		})
		pass(300 * time.Millisecond)
		if w.count("rules") == 0 || w.count("count-repair rules") != 1 {
			t.Errorf("no repair: %v", w.calls())
		}
		w.set(func() { delete(w.fails, "renew") })
		pass(time.Second)
		wantReady(t, n, "again")
	})
}
