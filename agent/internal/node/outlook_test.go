package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutlook gives sequences of rounds, two seconds apart, to a node that seeks its first answer, and looks at what it does.
func TestOutlook(t *testing.T) {
	ok := finding{asked: true}
	given1, neither, unclear := finding{proof: yes}, finding{proof: no}, finding{}
	podToo, podNot := finding{proof: no, pod: yes}, finding{proof: no, pod: no}
	times := func(n int, f finding) []finding {
		var out []finding
		for range n {
			out = append(out, f)
		}
		return out
	}
	join := func(parts ...[]finding) (out []finding) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	one := func(f ...finding) []finding { return f }
	for _, tc := range []struct {
		name   string
		rounds []finding
		allows bool
	}{
		{"nothing asked yet", nil, false},
		{"the first answer", one(ok), true},
		{"no answer, kube-dns answers pods", one(given1), false},
		{"no answer and nothing known of kube-dns", one(unclear, unclear), false},
		{"nobody answers at the start: pods' way is tried first", one(neither), false},
		{"and then the cache may answer", join(times(6, neither)), true},
		{"at once if a pod is not answered", one(neither, podNot), true},
		{"and never if one is", one(neither, podToo, podToo), false},
		{"cannot ask any more, kube-dns answers pods", one(ok, given1), false},
		{"cannot ask, nothing known of kube-dns", one(ok, unclear, unclear, unclear), true},
		{"an outage of kube-dns", join(one(ok), times(4, neither)), true},
		{"a longer one, in its turn", join(one(ok), times(9, neither)), false},
		{"a pod is not answered: the turn ends", join(one(ok), times(9, neither), one(podNot)), true},
		{"a pod is answered", join(one(ok), times(9, neither), one(podToo)), false},
		{"and stays with kube-dns", join(one(ok), times(9, neither), times(60, podToo)), false},
		{"no pod to ask: the turn ends by itself", join(one(ok), times(14, neither)), true},
		{"the outage ends amid a turn", join(one(ok), times(9, neither), one(ok)), true},
		{"one answer is not enough after a loss", one(ok, given1, ok, ok), false},
		{"three running are", one(ok, given1, ok, ok, ok), true},
		{"running only", one(ok, given1, ok, ok, given1, ok, ok), false},
		{"a second loss rests for longer", one(ok, given1, ok, ok, ok, given1, ok, ok, ok), false},
		{"for eight seconds", one(ok, given1, ok, ok, ok, given1, ok, ok, ok, ok), true},
		{"losses are forgiven after a minute", join(one(ok, given1), times(40, ok), one(given1, ok, ok, ok)), true},
		{"kube-dns dies behind those who were given back", join(one(ok, given1), times(7, neither)), true},
		{"for a moment only", join(one(ok, given1), times(4, neither), one(given1), times(4, neither)), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o outlook
			now := time.Unix(1000, 0)
			for _, f := range tc.rounds {
				now = now.Add(reachRound)
				o.weigh(f, now)
			}
			if o.allows() != tc.allows {
				t.Errorf("leases allowed: %t, want %t: %+v", o.allows(), tc.allows, o)
			}
		})
	}
}

// TestOutlookCannotFlap lets asking fail and come back at the worst of times for an hour.
func TestOutlookCannotFlap(t *testing.T) {
	o := outlook{stand: asking}
	now := time.Unix(1000, 0)
	losses := 0
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(reachAgain) {
		before := o.allows()
		f := finding{asked: !before, proof: yes}
		o.weigh(f, now)
		if before && !o.allows() {
			losses++
		}
	}
	if losses > 65 {
		t.Errorf("%d losses in an hour, want at most about one a minute", losses)
	}
}

// TestNoLeaseBeforeAnAnswer starts a node that cannot ask, while kube-dns answers pods.
func TestNoLeaseBeforeAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		refused := errors.New("10.96.0.10:53 over udp: operation not permitted")
		w.asked = func() error { return refused }
		n, end := begin(t, w, plainPlan())
		pass(time.Minute)
		if w.count("renew") > 0 {
			t.Error("a lease was renewed before a question was answered")
		}
		if ready, why := n.Ready(); ready || !strings.Contains(why, "the agent cannot ask") {
			t.Errorf("ready %t, %q", ready, why)
		}
		if s := n.Status(); !strings.Contains(s.CannotAsk, "not permitted") || s.Faults["asking"] == "" {
			t.Errorf("status: %+v", s)
		}
		w.set(func() { w.asked = func() error { return nil } })
		pass(3 * time.Second)
		wantReady(t, n, "after an answer")
		end()
	})
}

// TestLeaseGoesWithAsking takes the agent's way to kube-dns away while pods have theirs, by a client's trouble and without.
func TestLeaseGoesWithAsking(t *testing.T) {
	for trouble, within := range map[bool]time.Duration{true: 3 * time.Second, false: reachIdle + 4*time.Second} {
		t.Run(fmt.Sprint(trouble), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.asked = func() error { return nil }
				n, end := begin(t, w, plainPlan())
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
				if w.count("count-lost upstream") != 2 {
					t.Errorf("losses counted: %v", w.calls())
				}
				w.forget()
				pass(10 * time.Second)
				if w.count("renew") > 0 {
					t.Error("renewed without a way to ask")
				}
				w.set(func() { w.asked = func() error { return nil } })
				pass(5 * time.Second)
				wantReady(t, n, "after the way is back")
				end()
			})
		})
	}
}

// TestOutageOfKubeDNS takes kube-dns from everybody for 10 s: no lease changes. After that pods' way is tried by turns.
func TestOutageOfKubeDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		n, end := begin(t, w, plainPlan())
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
		end()
	})
}

// TestClientsAnswersCount: while clients' questions are answered, the node's own silence says nothing.
func TestClientsAnswersCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		_, end := begin(t, w, plainPlan())
		pass(2 * time.Second)
		w.set(func() { w.asked = func() error { return errors.New("silent") } })
		w.forget()
		for range 60 { // a flood of dead names, say, beside which others are answered
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
		end()
	})
}
