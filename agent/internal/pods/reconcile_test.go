package pods

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestTendSteersPending(t *testing.T) {
	n, pod := onePod(t, podfile.Pending, r4, r6)
	n.reconcile(no, true, map[string]int{Pending: 1})
	n.wantTable(pod)
	n.reconcile(func(a netip.Addr) Fallback { return Fallback{Verified: a == r4.ClusterDNS} }, false, map[string]int{Steered: 1})
	n.wantTable(pod, r4)
	want := append(decisions(podfile.Steered, r4), decisions(podfile.Pending, r6)...)
	testutil.Equal(t, "decisions", want, n.states("a", "eth0"))
	n.reconcile(yes, false, map[string]int{Steered: 1})
	n.wantTable(pod, r4, r6)
	testutil.Equal(t, "decisions", decisions(podfile.Steered, r4, r6), n.states("a", "eth0"))
}

// A pod that waited while the host's back end changed gets the new one's rules, and its file records that.
func TestPendingPodRecordsTheBackEnd(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	f := fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4))
	f.Backend = "iptables-nft"
	write(t, n.dir, f)
	n.reconcile(yes, false, map[string]int{Steered: 1})
	n.wantTable(pod, r4)
	if got, err := podfile.Read(podfile.Path(n.dir, "a", "eth0")); err != nil || got.Backend != n.backend.Recorded() {
		t.Errorf("the file records the back end %q, %v", got.Backend, err)
	}
}

// A redirect without rules in the switch would lead nowhere.
func TestTendWaitsForTheSwitch(t *testing.T) {
	n, pod := onePod(t, podfile.Pending, redirect("10.96.0.10", "169.254.20.12"))
	_, err := n.Reconcile(t.Context(), yes, true)
	testutil.Check(t, err)
	n.wantTable(pod)
	other := []steer.Redirect{redirect("10.96.0.99", "169.254.20.12")} // the address means another one now
	n.FallbackOnly(other)
	_, err = n.Reconcile(t.Context(), yes, true)
	testutil.Check(t, err)
	n.wantTable(pod)
	n.reconcile(yes, false, map[string]int{Steered: 1}) // from here on it is fallback only
	n.wantTable(pod, redirect("10.96.0.10", "169.254.20.12"))
}

func TestTendLeavesAloneWhoseWayIsElsewhere(t *testing.T) {
	n := newNode(t, testutil.Elsewhere)
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4, r6)))
	n.reconcile(yes, true, map[string]int{LeftAlone: 1})
	n.wantTable(pod)
	for _, d := range n.states("a", "eth0") {
		if d.State != podfile.LeftAlone || d.Reason == "" {
			t.Errorf("decision %+v, want left alone with a reason", d)
		}
	}
}

func TestTendNeverEntersAnotherNetns(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	reused, missing := fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)), fileOf(pod, "b", "eth0", decisions(podfile.Steered, r4))
	reused.NetNSInode = 1 // no netns has such a number, but the next one may be the host's
	missing.NetNS, missing.NetNSInode = pod.Path()+"-gone", 2
	write(t, n.dir, reused)
	write(t, n.dir, missing)
	n.reconcile(yes, true, map[string]int{Gone: 2})
	n.wantTable(pod)
}

// DEL comes between the reading of the files and the steering: nothing may be brought back.
func TestTendAfterDel(t *testing.T) {
	n, pod := onePod(t, podfile.Pending, r4)
	n.FallbackOnly([]steer.Redirect{r4})
	n.mu.Lock()
	n.cached.watched = true // what was read stays, as before an event arrives
	n.mu.Unlock()
	testutil.Must(t, podfile.Remove(n.dir, "a", "eth0"))
	_, err := n.Reconcile(t.Context(), yes, false)
	testutil.Check(t, err)
	n.wantTable(pod)
	if files, _ := podfile.List(n.dir); len(files) != 0 {
		t.Errorf("files %v, want none", files)
	}
}

func TestTendMends(t *testing.T) {
	n, pod := steeredPod(t, r4)
	n.wantTable(pod, r4)
	for _, wreck := range []string{"flush ruleset", "flush chain inet neardns postrouting", "delete chain inet neardns prerouting"} {
		pod.Run("nft", wreck)
		n.reconcile(no, true, map[string]int{Steered: 1})
		if err := verify(pod, r4); err == nil {
			t.Errorf("%s: mended while the fallback is not proven", wreck)
		}
		n.reconcile(yes, false, map[string]int{Steered: 1})
		if err := verify(pod, r4); err == nil {
			t.Errorf("%s: mended by a check that is not deep", wreck)
		}
		n.reconcile(yes, true, map[string]int{Steered: 1})
		n.wantTable(pod, r4)
	}
}

// The repair of all pods' tables, which with iptables takes seconds on a full node, holds no new pod up: its trial's result is taken in
// between.
func TestRepairHoldsNoPodUp(t *testing.T) {
	n := newNode(t, testutil.PTP)
	for i := range 8 {
		id := fmt.Sprintf("old%d", i)
		write(t, n.dir, fileOf(n.AddPod(id), id, "eth0", decisions(podfile.Pending, r4)))
	}
	n.reconcile(yes, true, map[string]int{Steered: 8})
	f := fileOf(n.AddPod("new"), "new", "eth0", untried(r4))
	write(t, n.dir, f)
	var calls atomic.Int64
	count := func(netip.Addr) Fallback { calls.Add(1); return Fallback{} }
	n.reconcile(count, false, map[string]int{Steered: 8, Pending: 1}) // as a deep one begins
	all := calls.Swap(0)
	trial := Trial{file: f, paths: []triedPath{{f.Decisions[0], podstate.Status{State: podstate.Untried}}}}
	taken, before := make(chan error, 1), 0
	waits := func() error { // for this repair, unless it is through
		for g := range strings.SplitSeq(stacks(), "\n\n") {
			if head, _, _ := strings.Cut(g, "\n"); len(taken) > 0 || strings.Contains(g, "takeResults") && strings.Contains(head, "Mutex.Lock") {
				return nil
			}
		}
		return errors.New("the new pod's result does not wait for the repair")
	}
	repairs := func(netip.Addr) Fallback {
		switch calls.Add(1) - all { // one of each old pod's repair
		case 1:
			go func() {
				taken <- n.takeResults(trial, map[steer.Redirect]signal{r4: {event: podstate.TrialAnswered}}, yes)
			}()
		case 8:
			before = len(taken)
		}
		if calls.Load() > all && before == 0 {
			testutil.Eventually(t, waits)
		}
		return Fallback{}
	}
	_, err := n.Reconcile(t.Context(), repairs, true)
	testutil.Check(t, err)
	testutil.Equal(t, "results taken before the last repair", 1, before)
	testutil.Check(t, <-taken)
	testutil.Equal(t, "the new pod", podfile.Steered, n.states("new", "eth0")[0].State)
}

// stacks has the stack of each goroutine.
func stacks() string {
	text := make([]byte, 1<<20)
	return string(text[:runtime.Stack(text, true)])
}

// Two attachments of one netns share its table.
func TestTendTwoAttachments(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)))
	write(t, n.dir, fileOf(pod, "a", "net1", decisions(podfile.Pending, r6)))
	n.reconcile(yes, true, map[string]int{Steered: 2})
	n.wantTable(pod, r4, r6)
	pod.Run("nft", "flush", "ruleset")
	n.reconcile(yes, true, map[string]int{Steered: 2})
	n.wantTable(pod, r4, r6)
}

func TestTendNamesUnreadableFiles(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "b", "eth0", decisions(podfile.Pending, r4)))
	bad := podfile.Path(n.dir, "a", "eth0")
	testutil.Must(t, os.WriteFile(bad, []byte("{"), 0o600))
	n.FallbackOnly([]steer.Redirect{r4})
	counts, err := n.Reconcile(t.Context(), yes, true)
	if err == nil || !strings.Contains(err.Error(), bad) || counts[Steered] != 1 {
		t.Errorf("counts %v, error %v; want the other pod steered and %s named", counts, err, bad)
	}
	n.wantTable(pod, r4)
}

func TestRemoveTables(t *testing.T) {
	n := newNode(t, testutil.PTP)
	one, two := n.AddPod("one"), n.AddPod("two")
	write(t, n.dir, fileOf(one, "a", "eth0", decisions(podfile.Pending, r4, r6)))
	write(t, n.dir, fileOf(two, "b", "eth0", decisions(podfile.Pending, r4)))
	n.reconcile(yes, true, map[string]int{Steered: 2})
	one.Run("nft", "add table inet foreign")

	gone, hidden := fileOf(two, "gone", "eth0", decisions(podfile.Steered, r4)), fileOf(two, "hidden", "eth0", decisions(podfile.Steered, r4))
	gone.NetNS, gone.NetNSInode = two.Path()+"-gone", 1
	hidden.NetNS, hidden.NetNSInode = "/run/not-mounted-here/ns", 2
	write(t, n.dir, gone)
	write(t, n.dir, hidden)

	errs := n.RemoveTables(t.Context())
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "pod default/hidden") || !strings.Contains(errs[0].Error(), "cannot be entered") {
		t.Errorf("errors %v, want one that names the hidden pod", errs)
	}
	n.wantTable(one)
	n.wantTable(two)
	testutil.Equal(t, "tables", "table inet foreign", strings.TrimSpace(one.Run("nft", "list", "tables")))
	testutil.Must(t, podfile.Remove(n.dir, "hidden", "eth0"))
	testutil.Check(t, errors.Join(n.RemoveTables(t.Context())...), "second time")
	n.reconcile(yes, true, map[string]int{LeftAlone: 2, Gone: 1})
	n.wantTable(one)
}

// A pod that shares the host's netns has a file, too; the table there is the switch.
func TestSharedNetnsIsLeftAlone(t *testing.T) {
	n := newNode(t, testutil.PTP)
	write(t, n.dir, podfile.File{ContainerID: "a", IfName: "eth0", NetNS: n.Host.Path(), NetNSInode: n.Host.Inode(), Decisions: decisions(podfile.Pending, r4)})
	table := n.table(n.Host)
	want := steer.Host{Redirects: []steer.Redirect{r4}}
	testutil.Must(t, table.Apply(want))
	n.reconcile(yes, true, map[string]int{LeftAlone: 1})
	testutil.Check(t, errors.Join(n.RemoveTables(t.Context())...))
	testutil.Check(t, table.Verify(want))
}

// If the switch takes the pod's link for an uplink, it sends the link's queries to kube-dns, so a pending pod is not steered.
func TestTendLeavesAloneBehindAnUplink(t *testing.T) {
	n, pod := onePod(t, podfile.Pending, r4)
	table := n.table(n.Host)
	testutil.Must(t, table.Apply(steer.Host{Redirects: []steer.Redirect{r4}, Uplinks: []string{pod.HostInterface}}))
	n.reconcile(yes, true, map[string]int{LeftAlone: 1})
	n.wantTable(pod)
	if got := n.states("a", "eth0"); got[0].Reason == "" {
		t.Errorf("decisions %+v, want a reason", got)
	}
}
