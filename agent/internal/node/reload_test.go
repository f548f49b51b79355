package node

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestReloadMovesAddressesBeforeTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
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
			testutil.Equal(t, "addresses of the link", []netip.Addr{steer2}, w.kept)
		})
		wantReady(t, n, "after the reload")
		testutil.Equal(t, "reloads counted", 1, w.count("count-reload true"))
	})
}

// A change of the configuration that the plan does not have, such as the cache's memory, counts as a reload; an unchanged one does not.
func TestReloadBesideThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		for i, changed := range []bool{false, true, false, true} {
			n.Set(plainPlan(), taken(changed))
			pass(time.Second)
			if got, want := w.count("count-reload true"), (i+1)/2; got != want {
				t.Errorf("%d reloads after plan %d, want %d", got, i, want)
			}
		}
		seen := 0
		n.Set(plainPlan(), func() bool { seen = 1; return true })
		n.Set(plainPlan(), taken(false)) // in place of the other, if the loop has not seen that
		pass(time.Second)
		if got := w.count("count-reload true"); got != 2+seen || w.count("restart") > 0 {
			t.Errorf("%d reloads, want %d, and no restart: %v", got, 2+seen, w.calls())
		}
	})
}

func TestBadReloadKeepsTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.set(func() { w.fails["restart"] = errors.New("Corefile:1 - Error during parsing: unknown directive") })
		n.Set(movedPlan(), func() bool {
			t.Error("the rest of a refused configuration was put in force")
			return true
		})
		pass(2 * time.Second)
		wantReady(t, n, "after a refused reload")
		if s := n.Status(); s.Redirects[0].Steering != steer1 || len(s.Leases) != 2 {
			t.Errorf("the old configuration is gone: %+v", s)
		}
		testutil.Equal(t, "refusals counted", 1, w.count("count-reload false"))
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
		n := begin(t, w, plainPlan(), func(n *Node) {
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
	})
}

// TestReloadIsTriedAgain has something in a reload's way that is no fault of the configuration, such as a held lock or port: the old
// one is what runs, whole, until the new one can be taken over.
func TestReloadIsTriedAgain(t *testing.T) {
	for part, obstacle := range map[string]error{
		"rules":       errors.New("another program holds iptables' lock"),
		"link":        errors.New("another program holds iptables' lock"),
		"reconfigure": errors.New("another program holds iptables' lock"),
		"restart":     &net.OpError{Op: "listen", Err: syscall.EADDRINUSE},
	} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				n := begin(t, w, plainPlan())
				pass(time.Second)
				w.forget()
				w.set(func() { w.fails[part] = obstacle })
				n.Set(movedPlan(), taken(false))
				pass(time.Minute)
				if s := n.Status(); s.Redirects[0].Steering != steer1 || s.Faults["configuration"] != obstacle.Error() {
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
				if part != "restart" && last != "" && last != "restart [169.254.20.11]" {
					t.Errorf("the server serves the new configuration: %s", last)
				}
				w.set(func() { delete(w.fails, part) })
				pass(12 * time.Second)
				if s := n.Status(); s.Redirects[0].Steering != steer2 || len(s.Faults) > 0 || w.count("count-reload true") != 1 {
					t.Errorf("afterwards: %+v", s)
				}
				wantReady(t, n, "at the end")
			})
		})
	}
}

// The round that follows a refused plan puts the rules back, which is no repair.
func TestRollbackIsNoRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.set(func() {
			w.fails["restart"] = errors.New("Corefile:1 - Error during parsing: unknown directive")
			w.moves = true
		})
		n.Set(movedPlan(), taken(false))
		pass(time.Second)
		if s := n.Status(); len(s.Repairs) > 0 {
			t.Errorf("repairs after a refused plan: %v", s.Repairs)
		}
	})
}
