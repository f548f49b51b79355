package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/lease"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

const other = "its-successor"

// sharedBy makes probes be answered by this agent while it reads, and by successor while it is paused.
func (w *world) sharedBy(successor func() prober.Result) {
	w.set(func() {
		w.answer = func(netip.Addr, steer.Protocol) prober.Result {
			calls := w.calls()
			for _, c := range slices.Backward(calls) {
				switch c {
				case "pause":
					return successor()
				case "resume":
					return prober.Result{Instance: self}
				}
			}
			return prober.Result{Instance: self}
		}
	})
}

func since(calls []string, first string) []string {
	if at := slices.Index(calls, first); at >= 0 {
		return calls[at:]
	}
	return nil
}

// TestYield: the node stops reading, renews by the successor's answers, and ends without withdrawing anything.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.sharedBy(func() prober.Result { return prober.Result{Instance: other} })
		n := begin(t, w, plainPlan())
		pass(time.Second)
		if len(w.record()) != 1 {
			t.Fatal("the fallback is not proven")
		}
		apart, err := n.AcceptSuccessor(other)
		testutil.Must(t, err)
		w.forget()
		decide, err := n.Yield(t.Context(), other, []netip.Addr{steer1})
		testutil.Must(t, err)
		calls := since(w.calls(), "pause")
		slices.Sort(calls[1:])
		testutil.Equal(t, "to the proof", []string{"pause", "renew 169.254.20.11/tcp", "renew 169.254.20.11/udp"}, calls)
		w.set(func() {
			w.prove = func() error { return errors.New("closed") } // as the prober then is
			w.ending = 2 * time.Minute                             // long enough to look at the proof again
		})
		decide(true)
		apart()
		pass(w.ending + time.Second)
		testutil.Equal(t, "records, which are the successor's", 1, len(w.record()))
		calls = w.calls()
		testutil.Equal(t, "at the end", []string{"close-prober", "stop"}, calls[len(calls)-2:])
		if w.count("withdraw") > 0 {
			t.Errorf("leases withdrawn that are the successor's: %v", calls)
		}
		if _, err := n.Yield(t.Context(), other, nil); !errors.Is(err, ErrEnding) {
			t.Errorf("a second time: %v", err)
		}
	})
}

// TestYieldWithoutUpstreams: the upstreams fail while the successor is probed. A lease that was withdrawn for that is not renewed.
func TestYieldWithoutUpstreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.asked = func() error { return nil }
		n := begin(t, w, plainPlan())
		pass(2 * time.Second)
		wantReady(t, n, "before the handover")
		w.sharedBy(func() prober.Result {
			n.conclude(map[netip.Addr]lease.Round{vip: {Fallback: lease.Yes}}, errors.New("silent"))
			return prober.Result{Instance: other}
		})
		w.forget()
		decide, err := n.Yield(t.Context(), other, []netip.Addr{steer1})
		testutil.Must(t, err)
		if calls := since(w.calls(), "pause"); strings.Contains(fmt.Sprint(calls), "renew") || w.count("withdraw") != 2 {
			t.Errorf("calls: %v", calls)
		}
		decide(false)
	})
}

// TestYieldFails: the successor is silent (stopped), refuses, or does not take over in the end, or a third agent answers. Each time the
// node reads again within a lease's lifetime, and keeps its leases.
func TestYieldFails(t *testing.T) {
	for name, successor := range map[string]func() prober.Result{
		"silent":   func() prober.Result { return prober.Result{Failure: prober.Timeout, Err: errors.New("no answer")} },
		"refuses":  func() prober.Result { return prober.Result{Failure: prober.Refused, Err: errors.New("refused")} },
		"a third":  func() prober.Result { return prober.Result{Instance: "a-third"} },
		"no taker": func() prober.Result { return prober.Result{Instance: other} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.sharedBy(successor)
				n := begin(t, w, plainPlan())
				pass(time.Second)
				w.forget()
				begun := time.Now()
				decide, err := n.Yield(t.Context(), other, []netip.Addr{steer1})
				if name == "no taker" {
					testutil.Must(t, err)
					decide(false)
				} else if err == nil || !strings.Contains(err.Error(), "fails its check at 169.254.20.11/") {
					t.Errorf("error: %v", err)
				}
				synctest.Wait()
				if took := time.Since(begun); took > plainPlan().Terms.Lifetime-plainPlan().Terms.Renew {
					t.Errorf("nobody read for %v", took)
				}
				testutil.Equal(t, fmt.Sprintf("calls: %v", w.calls()), 1, w.count("resume"))
				w.forget()
				pass(time.Second)
				if w.count("renew") < 10 || w.count("withdraw") > 0 || w.count("start") > 0 {
					t.Errorf("it does not go on: %v", w.calls())
				}
				wantReady(t, n, "going on")
			})
		})
	}
}

// TestYieldOfFewerAddresses: leases of addresses that the successor does not serve are withdrawn before this agent stops reading, and
// granted again after the handover has failed.
func TestYieldOfFewerAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		w.forget()
		decide, err := n.Yield(t.Context(), other, nil)
		testutil.Must(t, err)
		calls := w.calls()
		slices.Sort(calls[:2])
		testutil.Equal(t, "calls", []string{"withdraw 169.254.20.11/tcp", "withdraw 169.254.20.11/udp", "pause"}, calls)
		decide(false)
		pass(time.Second)
		wantReady(t, n, "after the handover failed")
	})
}

// TestBesideCounts: while a successor reads the same sockets, its answers count as this agent's, and afterwards they do not.
func TestBesideCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := begin(t, w, plainPlan())
		pass(time.Second)
		apart, err := n.AcceptSuccessor(other)
		testutil.Must(t, err)
		w.answers(prober.Result{Instance: other})
		pass(5 * time.Second)
		wantReady(t, n, "beside a successor")
		apart()
		w.forget()
		pass(2 * time.Second)
		if ready, why := n.Ready(); ready || w.count("renew") > 0 || !strings.Contains(why, "another agent (its-successor) answered") {
			t.Errorf("another agent's answers are taken for ours: %q, %v", why, w.calls())
		}
	})
}

// TestStopWithinAHandover: if it has to end while a successor prepares, the node waits for it and withdraws nothing; when the
// successor gives up, or never comes to it, the node stops as always.
func TestStopWithinAHandover(t *testing.T) {
	for _, tc := range []struct {
		name  string
		takes bool
		after time.Duration
	}{{"takes over", true, time.Second}, {"gives up", false, time.Second}, {"hangs", false, time.Hour}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.sharedBy(func() prober.Result { return prober.Result{Instance: other} })
				n := begin(t, w, plainPlan())
				pass(time.Second)
				apart, err := n.AcceptSuccessor(other)
				testutil.Must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					defer cancel()
					defer apart()
					pass(min(tc.after, 10*time.Second))
					if tc.takes {
						decide, err := n.Yield(t.Context(), other, []netip.Addr{steer1})
						if err != nil {
							t.Error(err)
							return
						}
						decide(true)
					}
				}()
				w.forget()
				begun := time.Now()
				w.end()
				took := time.Since(begun)
				<-ctx.Done()
				if withdrawn := w.count("withdraw") > 0; withdrawn == tc.takes {
					t.Errorf("calls: %v", w.calls())
				}
				if want := min(tc.after, lastYield); took < want || took > want+time.Second {
					t.Errorf("ended after %v, want %v", took, want)
				}
				if before := w.calls(); tc.takes && slices.Index(before, "pause") < 5 {
					t.Errorf("no leases were renewed while it waited: %v", before)
				}
				if _, err := n.AcceptSuccessor(other); !errors.Is(err, ErrEnding) {
					t.Errorf("a successor may begin after the end: %v", err)
				}
			})
		})
	}
}

// TestInherit: an agent that takes over a node with its sockets starts no server, reports its predecessor, and counts no repair for
// differences to the predecessor's configuration. Addresses that the predecessor did not have are served once the link has them.
func TestInherit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			served        []netip.Addr
			start, reload int
		}{{[]netip.Addr{steer1}, 0, 0}, {[]netip.Addr{steer2}, 0, 1}, {nil, 1, 0}} {
			w := newWorld()
			w.done = make(chan struct{})
			w.drift = []string{"a newer table"}
			from := Handover{From: "process 7", At: time.Now(), Took: "11ms"}
			n := begin(t, w, plainPlan(), func(n *Node) { n.Inherit(from, tc.served) })
			pass(time.Second)
			if w.count("start") != tc.start || w.count("restart") != tc.reload || w.count("count-repair") != 0 {
				t.Errorf("served %v: %v", tc.served, w.calls())
			}
			if s := n.Status(); !s.Ready || s.Handover == nil || *s.Handover != from {
				t.Errorf("status: %+v", s)
			}
			w.set(func() { w.drift = []string{"a foreign hand"} })
			w.ticks <- struct{}{}
			pass(time.Second)
			testutil.Equal(t, fmt.Sprintf("repairs counted: %v", w.calls()), 1, w.count("count-repair"))
			w.end()
		}
	})
}
