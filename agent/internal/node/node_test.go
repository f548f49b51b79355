package node

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrderOfStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
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
		end()
		want := []string{"withdraw 169.254.20.11/tcp", "withdraw 169.254.20.11/udp", "stop", "close-prober"}
		got := w.calls()
		slices.Sort(got[:2])
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("order of stop (-want +got):\n%s", diff)
		}
	})
}

func TestNoLeaseWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["start"] = errors.New("listen on udp 169.254.20.11:53: address in use: held by dnsmasq")
		n, end := begin(t, w, plainPlan())
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
		want := map[string]error{"link": nil, "rules": nil, "firewall": nil, "prober": nil, "server": w.fails["start"]}
		w.set(func() {
			if !maps.Equal(w.checked, want) {
				t.Errorf("recorded %v, want %v", w.checked, want)
			}
			delete(w.fails, "start")
		})
		pass(12 * time.Second)
		wantReady(t, n, "after the port came free")
		w.set(func() {
			if err := w.checked["server"]; err != nil {
				t.Errorf("the server that runs is recorded as failed: %v", err)
			}
		})
		end()
	})
}

// A rebuilt table has no lease, so every target is probed at once instead of at its turn.
func TestRepairedRulesAreProvenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := plainPlan()
		_, end := begin(t, w, s)
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
		end()
	})
}

func TestDeadServerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		w.die()
		pass(time.Second)
		if ready, why := n.Ready(); !ready || w.count("start") != 1 {
			t.Errorf("ready %t (%s) after %d starts", ready, why, w.count("start"))
		}
		end()
	})
}

func TestExplicitFailuresCountThreeOfFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		refuse := prober.Result{Failure: prober.Refused, Err: errors.New("nobody listens")}
		var failed int
		w.set(func() {
			w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
				if p == steer.TCP && failed < 2 {
					failed++
					return refuse
				}
				return prober.Result{Instance: self}
			}
		})
		pass(time.Second)
		if ready, why := n.Ready(); !ready || w.count("withdraw") > 0 {
			t.Errorf("two failures took the lease: %s", why)
		}
		w.set(func() {
			w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
				if p == steer.TCP {
					return refuse
				}
				return prober.Result{Instance: self}
			}
		})
		pass(500 * time.Millisecond)
		if w.count("withdraw 169.254.20.11/tcp") != 1 || w.count("withdraw 169.254.20.11/udp") != 0 {
			t.Errorf("want one withdrawal, of tcp: %v", w.calls())
		}
		if _, why := n.Ready(); !strings.Contains(why, "over tcp: nobody listens") {
			t.Errorf("reason: %q", why)
		}
		end()
	})
}

func TestSilenceIsNotCountedButLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.answers(prober.Result{Failure: prober.Timeout, Err: errors.New("no answer")})
		w.forget()
		pass(3 * time.Second)
		if w.count("withdraw") > 0 {
			t.Error("silence was answered by a withdrawal: the kernel's timeout does that")
		}
		if ready, _ := n.Ready(); ready {
			t.Error("ready without an answer for longer than the lease's lifetime")
		}
		end()
	})
}

func TestSomebodyElsesAnswerIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.answers(prober.Result{Instance: "another"})
		n, end := begin(t, w, plainPlan())
		pass(5 * time.Second)
		if w.count("renew") > 0 {
			t.Error("renewed on another agent's answer")
		}
		if _, why := n.Ready(); !strings.Contains(why, "another agent (another) answered") {
			t.Errorf("reason: %q", why)
		}
		end()
	})
}

func TestMissingSwitchIsMendedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
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
		end()
	})
}

func TestReloadMovesAddressesBeforeTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		n.Set(movedPlan(), taken(false))
		pass(time.Second)
		var order []string
		for _, c := range w.calls() {
			if word := strings.Fields(c)[0]; slices.Contains([]string{"withdraw", "link", "restart", "reconfigure"}, word) {
				order = append(order, c)
			}
		}
		want := []string{"withdraw 169.254.20.11/udp", "withdraw 169.254.20.11/tcp", "link [169.254.20.12 169.254.20.11]", "restart [169.254.20.12]"}
		if len(order) < 5 || cmp.Diff(want, order[:4]) != "" || !strings.HasPrefix(order[4], "reconfigure") {
			t.Errorf("order of reload: %v", order)
		}
		w.set(func() {
			if !slices.Equal(w.kept, []netip.Addr{steer2}) {
				t.Errorf("the link holds %v afterwards", w.kept)
			}
		})
		wantReady(t, n, "after the reload")
		if w.count("count-reload true") != 1 {
			t.Error("reload not counted")
		}
		end()
	})
}

// A configuration that differs in nothing of the plan, such as the cache's memory, is a reload as any other; one that does not differ is
// none.
func TestReloadBesideThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		for i, changed := range []bool{false, true, false, true} {
			n.Set(plainPlan(), taken(changed))
			pass(time.Second)
			if got, want := w.count("count-reload true"), (i+1)/2; got != want {
				t.Errorf("%d reloads after plan %d, want %d", got, i, want)
			}
		}
		n.Set(plainPlan(), taken(true))
		n.Set(plainPlan(), taken(false)) // before the loop saw the other
		pass(time.Second)
		if got := w.count("count-reload true"); got != 2 || w.count("restart") > 0 {
			t.Errorf("%d reloads, want 2, and no restart: %v", got, w.calls())
		}
		end()
	})
}

func TestBadReloadKeepsTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainPlan())
		pass(time.Second)
		w.set(func() { w.fails["restart"] = errors.New("listen on udp 169.254.20.12:53: in use") })
		n.Set(movedPlan(), func() bool {
			t.Error("the rest of a refused configuration was put in force")
			return true
		})
		pass(2 * time.Second)
		wantReady(t, n, "after a refused reload")
		if s := n.Status(); s.Redirects[0].Steering != steer1 || len(s.Leases) != 2 {
			t.Errorf("the old configuration is gone: %+v", s)
		}
		if w.count("count-reload false") != 1 {
			t.Error("refusal not counted")
		}
		end()
	})
}

// movedPlan is plainPlan at another steering address.
func movedPlan() plan.Plan {
	next := plainPlan()
	next.Redirects[0].Steering = steer2
	next.Server.Addresses = next.Addresses()
	return next
}

// Of plans that are set one after the other the last counts, also while one before it is to be tried again.
func TestLastPlanCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		third := movedPlan()
		third.Terms.Lifetime += time.Second
		n, end := begin(t, w, plainPlan(), func(n *Node) {
			n.Set(movedPlan(), taken(false))
			n.Set(plainPlan(), taken(false))
		})
		pass(time.Second)
		if s := n.Status(); s.Redirects[0].Steering != steer1 || w.count("count-reload") > 0 {
			t.Errorf("a plan that another had replaced was tried: %v", w.calls())
		}
		w.set(func() { w.fails["reconfigure"] = errors.New("another program holds iptables' lock") })
		n.Set(movedPlan(), taken(false))
		pass(time.Minute)
		if s := n.Status(); s.Faults["configuration"] == "" {
			t.Errorf("nothing tells of the plan that is owed: %+v", s)
		}
		n.Set(plainPlan(), taken(false))
		w.set(func() { delete(w.fails, "reconfigure") })
		pass(time.Minute)
		if s := n.Status(); s.Redirects[0].Steering != steer1 || len(s.Faults) > 0 || w.count("count-reload true") > 0 {
			t.Errorf("taken back: %+v", s)
		}
		n.Set(third, taken(false))
		pass(time.Second)
		if n.plan().Terms != third.Terms || w.count("count-reload true") != 1 {
			t.Errorf("the last plan does not run: %+v", n.plan())
		}
		end()
	})
}

// TestReloadIsTriedAgain has something in a reload's way that is no fault of the configuration, such as a held lock: the old
// one is what runs, whole, until the new one can be taken over.
func TestReloadIsTriedAgain(t *testing.T) {
	for _, part := range []string{"rules", "link", "reconfigure"} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				n, end := begin(t, w, plainPlan())
				pass(time.Second)
				w.forget()
				w.set(func() { w.fails[part] = errors.New("another program holds iptables' lock") })
				n.Set(movedPlan(), taken(false))
				pass(time.Minute)
				if s := n.Status(); s.Redirects[0].Steering != steer1 || !strings.Contains(s.Faults["configuration"], "lock") {
					t.Errorf("meanwhile: %+v", s)
				}
				if tries := w.count("count-reload false"); tries < 6 || tries > 20 {
					t.Errorf("%d tries in a minute", tries)
				}
				last := ""
				for _, c := range w.calls() {
					if strings.HasPrefix(c, "restart ") {
						last = c
					}
				}
				if last != "" && last != "restart [169.254.20.11]" {
					t.Errorf("the server serves the new configuration: %s", last)
				}
				w.set(func() { delete(w.fails, part) })
				pass(12 * time.Second)
				if s := n.Status(); s.Redirects[0].Steering != steer2 || len(s.Faults) > 0 || w.count("count-reload true") != 1 {
					t.Errorf("afterwards: %+v", s)
				}
				wantReady(t, n, "at the end")
				end()
			})
		})
	}
}

func TestFallbackIsProvenWatchedAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		no := errors.New("no answer")
		w.prove = func() error { return no }
		_, end := begin(t, w, plainPlan())
		pass(10 * time.Second)
		if len(w.record()) > 0 || w.count("tend proven=true") > 0 {
			t.Error("proven without proof")
		}
		w.set(func() { w.prove = func() error { return nil } })
		pass(5 * time.Second)
		if !slices.Equal(w.record(), []netip.Addr{vip}) || w.count("tend proven=true") == 0 {
			t.Errorf("record %v; pods were not tended", w.record())
		}
		// Two failures in a row are a restart of kube-dns, three are the end of it.
		var failures int
		w.set(func() {
			w.prove = func() error {
				if failures++; failures <= 2 {
					return no
				}
				return nil
			}
		})
		pass(40 * time.Second)
		if len(w.record()) != 1 {
			t.Error("two failures took the proof")
		}
		w.set(func() { w.prove = func() error { return no } })
		pass(60 * time.Second)
		if len(w.record()) != 0 {
			t.Error("the proof outlives the fallback")
		}
		end()
	})
}

// A reload corrects a wrong cluster DNS address: no fault of the old address is left afterwards.
func TestFallbackThatGoesIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.prove = func() error { return errors.New("no answer") }
		n, end := begin(t, w, plainPlan())
		defer end()
		pass(10 * time.Second)
		if n.Status().Faults["fallback 10.96.0.10"] == "" {
			t.Fatal("a fallback that fails is no fault")
		}
		next := plainPlan()
		next.Redirects = []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.11"), Steering: steer2}}
		next.Server.Addresses = next.Addresses()
		w.set(func() { w.prove = func() error { return nil } })
		n.Set(next, taken(true))
		pass(10 * time.Second)
		if faults := n.Status().Faults; len(faults) > 0 {
			t.Errorf("faults after the reload: %v", faults)
		}
		gone := func(want ...string) {
			t.Helper()
			w.set(func() {
				if got := slices.Sorted(slices.Values(w.gone)); !slices.Equal(got, want) {
					t.Errorf("gone are %v, want %v", got, want)
				}
				w.gone = nil
			})
		}
		gone("fallback 10.96.0.10", "lease 169.254.20.11/tcp", "lease 169.254.20.11/udp")
		next.Steers = false
		n.Set(next, taken(true))
		pass(10 * time.Second)
		gone("fallback 10.96.0.11")
	})
}

func TestProofFromBeforeARebootCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		w.prove = func() error { return errors.New("kube-dns is not up yet") }
		_, end := begin(t, w, plainPlan())
		pass(100 * time.Millisecond)
		if w.count("tend proven=true") == 0 {
			t.Error("the earlier proof was not used")
		}
		end()
	})
}

func TestNothingIsSteeredWithoutTranslation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		s := plainPlan()
		s.Steers = false
		_, end := begin(t, w, s)
		pass(10 * time.Second)
		if len(w.record()) > 0 || w.count("tend proven=true") > 0 {
			t.Error("kubeProxyMode none, but the proof stands")
		}
		end()
	})
}

func TestAnswerWithoutSwitchProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["rules"] = errors.New("apply rules: operation not permitted")
		_, end := begin(t, w, plainPlan())
		pass(10 * time.Second)
		if len(w.record()) > 0 {
			t.Error("proven while the host table could not be installed")
		}
		end()
	})
}

// A fallback that fails for minutes counts as lost only if its path is gone. If kube-dns is only down, pods keep the cache.
func TestFallbackIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.prove = func() error { return nil }
		n, end := begin(t, w, plainPlan())
		defer end()
		pass(time.Minute)
		w.set(func() { w.prove = func() error { return errors.New("no answer") } })
		pass(2 * lostAfter)
		if got := w.count("give back"); got > 0 {
			t.Errorf("given back %d times while kube-dns may only be away", got)
		}
		w.set(func() { w.lost = "nothing translates it any more" })
		pass(time.Minute)
		if w.count("give back: nothing translates it any more") == 0 {
			t.Error("not given back although the way is gone")
		}
		if n.isVerified(vip) {
			t.Error("still proven")
		}
		w.set(func() { w.prove = func() error { return nil } })
		pass(time.Minute)
		w.forget()
		pass(time.Minute)
		if w.count("give back") > 0 || w.count("tend proven=true") == 0 {
			t.Errorf("after the proof: %v", w.calls())
		}
	})
}

// Less than some minutes are no loss, whatever the rules say: kube-proxy may be restarting.
func TestFallbackIsNotLostAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.lost, w.prove = "nothing translates it", func() error { return nil }
		_, end := begin(t, w, plainPlan())
		defer end()
		pass(time.Minute)
		w.set(func() { w.prove = func() error { return errors.New("no answer") } })
		pass(lostAfter - 10*time.Second)
		w.set(func() { w.prove = func() error { return nil } })
		pass(time.Minute)
		if w.count("give back") > 0 {
			t.Error("given back within the time that a restart of kube-proxy takes")
		}
	})
}
