package node

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestFallbackIsProvenWatchedAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		no := errors.New("no answer")
		w.prove = func() error { return no }
		begin(t, w, plainPlan())
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
		testutil.Equal(t, "records after two failures", 1, len(w.record()))
		w.set(func() { w.prove = func() error { return no } })
		pass(60 * time.Second)
		testutil.Equal(t, "records after the end of the fallback", 0, len(w.record()))
	})
}

// A reload corrects a wrong cluster DNS address: no fault of the old address is left afterwards.
func TestFallbackThatGoesIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.prove = func() error { return errors.New("no answer") }
		n := begin(t, w, plainPlan())
		pass(10 * time.Second)
		if n.Status().Faults["fallback 10.96.0.10"] == "" {
			t.Fatal("a fallback that fails is no fault")
		}
		next := movedCluster()
		w.set(func() { w.prove = func() error { return nil } })
		n.Set(next, taken(true))
		pass(10 * time.Second)
		if faults := n.Status().Faults; len(faults) > 0 {
			t.Errorf("faults after the reload: %v", faults)
		}
		gone := func(want ...string) {
			t.Helper()
			w.set(func() {
				testutil.Equal(t, "gone", want, slices.Sorted(slices.Values(w.gone)))
				w.gone = nil
			})
		}
		gone("fallback 10.96.0.10", "lease 169.254.20.11/tcp", "lease 169.254.20.11/udp")
		next.Steers = false
		n.Set(next, taken(true))
		pass(10 * time.Second)
		gone("fallback 10.96.0.11")
		if proven := n.Status().Proven; len(proven) > 0 {
			t.Errorf("still proven without a plan that steers: %v", proven)
		}
		if record := w.record(); len(record) > 0 {
			t.Errorf("still recorded without a plan that steers: %v", record)
		}
	})
}

// movedCluster is plainPlan with another cluster DNS address.
func movedCluster() plan.Plan {
	next := plainPlan()
	next.Redirects = []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.11"), Steering: steer2}}
	next.Server.Addresses = next.Addresses()
	return next
}

func TestProofFromBeforeARebootCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		w.prove = func() error { return errors.New("kube-dns is not up yet") }
		begin(t, w, plainPlan())
		pass(100 * time.Millisecond)
		if w.count("tend proven=true") == 0 {
			t.Error("the earlier proof was not used")
		}
	})
}

func TestNothingIsSteeredWithoutTranslation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		s := plainPlan()
		s.Steers = false
		begin(t, w, s)
		pass(10 * time.Second)
		if len(w.record()) > 0 || w.count("tend proven=true") > 0 {
			t.Error("kubeProxyMode none, but the proof stands")
		}
		if reads := w.count("read-proof"); reads > 3 {
			t.Errorf("the record was read %d times", reads)
		}
	})
}

func TestAnswerWithoutSwitchProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["rules"] = errors.New("apply rules: operation not permitted")
		begin(t, w, plainPlan())
		pass(10 * time.Second)
		if len(w.record()) > 0 {
			t.Error("proven while the host table could not be installed")
		}
	})
}

// A fallback that fails for minutes counts as lost only if its path is gone. If kube-dns is only down, pods keep the cache. Less than some
// minutes are no loss, whatever the rules say: kube-proxy may be restarting.
func TestFallbackIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.lost, w.prove = "nothing translates it", func() error { return nil }
		n := begin(t, w, plainPlan())
		pass(time.Minute)
		w.set(func() { w.prove = func() error { return errors.New("no answer") } })
		pass(lostAfter - 10*time.Second)
		w.set(func() { w.prove = func() error { return nil } })
		pass(time.Minute)
		if w.count("give back") > 0 {
			t.Error("given back within the time that a restart of kube-proxy takes")
		}
		w.set(func() { w.lost, w.prove = "", func() error { return errors.New("no answer") } })
		pass(2 * lostAfter)
		if got := w.count("give back"); got > 0 {
			t.Errorf("given back %d times while kube-dns may only be away", got)
		}
		intercepting := plainPlan()
		intercepting.InterceptNode = true
		n.Set(intercepting, taken(true))
		w.set(func() { w.lost = "nothing translates it any more" })
		pass(time.Minute)
		if got := w.count("give back"); got > 0 {
			t.Errorf("given back %d times while the agent itself may answer the host's queries", got)
		}
		n.Set(plainPlan(), taken(true))
		pass(time.Minute)
		if w.count("give back: nothing translates it any more") == 0 {
			t.Error("not given back although the way is gone")
		}
		if n.fallback(vip).Verified {
			t.Error("still proven")
		}
		n.Set(movedCluster(), taken(true))
		pass(time.Second)
		testutil.Equal(t, "lost is a fallback that no plan has", "", n.fallback(vip).Lost)
		n.Set(plainPlan(), taken(true))
		w.set(func() { w.prove = func() error { return nil } })
		pass(time.Minute)
		w.forget()
		pass(time.Minute)
		if w.count("give back") > 0 || w.count("tend proven=true") == 0 {
			t.Errorf("after the proof: %v", w.calls())
		}
	})
}

// A record of which only the folder's sync failed is on disk, so nothing is left to write.
func TestRecordThatIsOnDiskIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["write-proof"] = errors.New("sync folder: input/output error")
		n := begin(t, w, plainPlan())
		pass(time.Minute)
		if faults := n.Status().Faults; len(faults) > 0 || w.count("write-proof") != 1 {
			t.Errorf("faults after %d writes: %v", w.count("write-proof"), faults)
		}
	})
}
