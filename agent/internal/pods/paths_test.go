package pods

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// held is a Lease that is always held, and was renewed just now.
func held(netip.Addr, steer.Protocol) (since, proven time.Time, ok bool) {
	return time.Time{}, time.Now(), true
}

// young is how long a trial of a young path waits for an answer that must not come, as with the default lease.
const young = 250 * time.Millisecond

// drop has a pod's link lose what the rules say, before the host's prerouting, and returns the end of it.
func (n *node) drop(pod *testutil.Pod, rules string) (end func()) {
	n.t.Helper()
	n.Host.RunInput(fmt.Sprintf("table netdev lost {\n\tchain c {\n\t\ttype filter hook ingress device %q priority 0; policy accept;\n%s\n\t}\n}\n", pod.HostInterface, rules), "nft", "-f", "-")
	return func() { n.Host.Run("nft", "delete", "table", "netdev", "lost") }
}

// serve stands in for the agent at the steering addresses.
func (n *node) serve() {
	n.t.Helper()
	n.Host.Serving("neardns0", r4.Steering, r6.Steering)
	testutil.ServeDNS(n.t, n.Host, testutil.DNSConfig{Name: "AGENT", Listen: []netip.AddrPort{netip.AddrPortFrom(r4.Steering, 53), netip.AddrPortFrom(r6.Steering, 53)}})
}

// try runs the trials that are due while no fallback is verified. changed: a path's trial was answered, and it waits for its fallback.
func (n *node) try(lease Lease, changed bool) {
	n.t.Helper()
	waiting := func() (count int) {
		for _, f := range n.List() {
			for _, d := range f.Decisions {
				if StateOf(d) == podstate.Waiting {
					count++
				}
			}
		}
		return count
	}
	before := waiting()
	tried := false
	testutil.Eventually(n.t, func() error { // on a busy machine, an answer may be later than a trial waits
		due := n.DueTrials(lease, yes).Trials
		tried = tried || len(due) > 0
		if changed && !tried {
			n.t.Fatal("no trial is due")
		}
		for _, one := range due {
			n.RunTrial(n.t.Context(), one, lease, map[bool]time.Duration{true: testutil.Attempt, false: young}[changed], no)
		}
		return testutil.ErrorIf(changed && waiting() == before, "not answered")
	})
	testutil.Check(n.t, n.failed.fault(n.List()))
	testutil.Equal(n.t, "answered", changed, waiting() > before)
}

// due makes the next trial of a bypassed pod due after a time.
func (n *node) due(id string, after time.Duration) {
	n.t.Helper()
	n.Pods.mu.Lock()
	defer n.Pods.mu.Unlock()
	for at, s := range n.paths {
		if at.key == (key{id, "eth0"}) && !s.Next.IsZero() {
			s.Next = time.Now().Add(after)
			n.paths[at] = s
			return
		}
	}
	n.t.Errorf("%s waits for no trial", id)
}

// suspected are the attachments with a steered path that is to be tried.
func (n *node) suspected() (ids []string) {
	n.t.Helper()
	n.Pods.due.tablesRead = time.Time{}
	testutil.Check(n.t, n.reportTables(n.List(), time.Now()))
	for _, f := range n.List() {
		for _, d := range f.Decisions {
			if n.Pods.suspected(path{keyOf(f), d.Redirect}, time.Now()) && !slices.Contains(ids, f.ContainerID) {
				ids = append(ids, f.ContainerID)
			}
		}
	}
	return ids
}

// Only a pod whose queries are lost before the switch is bypassed. It is steered again when they get through. While the agent itself may be
// at fault, no pod is bypassed.
func TestGivenBackAndSteeredAgain(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	lost, well := n.AddPod("lost"), n.AddPod("well")
	write(t, n.dir, fileOf(lost, "a", "eth0", decisions(podfile.Pending, r4, r6)))
	write(t, n.dir, fileOf(well, "b", "eth0", decisions(podfile.Pending, r4, r6)))
	n.reconcile(yes, true, map[string]int{Steered: 2})
	ask := func(pod *testutil.Pod, server netip.Addr) error {
		_, err := testutil.Ask(pod.NetNS, netip.AddrPortFrom(server, 53), "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{Timeout: 300 * time.Millisecond})
		return err
	}
	for _, pod := range []*testutil.Pod{lost, well} {
		testutil.Eventually(t, func() error { return errors.Join(ask(pod, r4.ClusterDNS), ask(pod, r6.ClusterDNS)) })
	}
	end := n.drop(lost, "ip daddr 169.254.20.11 udp dport 53 drop")
	testutil.Eventually(t, func() error {
		_ = ask(lost, r4.ClusterDNS)
		ids := n.suspected()
		return testutil.ErrorIf(!slices.Equal(ids, []string{"a"}), "suspected: %v", ids)
	})
	suspects := func() { n.suspected() }
	for name, lease := range map[string]Lease{
		"not held":       func(netip.Addr, steer.Protocol) (time.Time, time.Time, bool) { return time.Time{}, time.Now(), false },
		"not proven yet": func(netip.Addr, steer.Protocol) (time.Time, time.Time, bool) { return time.Time{}, time.Time{}, true },
		"just begun":     func(netip.Addr, steer.Protocol) (time.Time, time.Time, bool) { return time.Now(), time.Now(), true },
	} {
		suspects()
		n.try(lease, false)
		if got := n.states("a", "eth0"); len(got[0].Unanswered) > 0 {
			t.Errorf("a lease %s: %v", name, got)
		}
	}
	suspects()
	n.try(held, false)
	got := n.states("a", "eth0")
	if got[0].State != podfile.Pending || !slices.Equal(got[0].Unanswered, []string{"udp"}) || got[0].Reason == "" || got[1].State != podfile.Steered {
		t.Errorf("given back: %+v", got)
	}
	n.wantTable(lost, r6)
	n.wantTable(well, r4, r6)
	n.reconcile(yes, true, map[string]int{Steered: 1, Bypassed: 1})
	n.wantTable(lost, r6)
	n.due("a", time.Hour)
	n.try(held, false) // its time has not come
	n.due("a", 0)
	n.try(held, false) // still lost
	end()
	n.due("a", 0)
	n.try(held, true)
	n.reconcile(yes, false, map[string]int{Steered: 2})
	n.wantTable(lost, r4, r6)
	n.try(held, false)
}

// A suspect that is answered is steered as before, and its table waits no more. The switch delivers its test queries, also if it bypasses
// the pod: kube-dns, whose own upstream may be silent, must not decide about the pod's path.
func TestSuspectIsAnswered(t *testing.T) {
	n, pod := steeredPod(t, r4)
	n.serve()
	for _, proto := range []string{"udp", "tcp"} {
		pod.Run("nft", "add", "element", "inet", "neardns", "waiting1", "{ ipv4 . "+proto+" }")
	}
	testutil.Equal(t, "suspected", []string{"a"}, n.suspected())
	var mu sync.Mutex
	var released []steer.Protocol
	n.Release = func(c steer.Client) error {
		mu.Lock()
		defer mu.Unlock()
		released = append(released, c.Protocol)
		return nil
	}
	n.try(held, false)
	slices.Sort(released)
	released = slices.Compact(released) // a query that is lost is repeated
	testutil.Equal(t, "the switch delivers test queries over", []steer.Protocol{steer.TCP, steer.UDP}, released)
	n.wantTable(pod, r4)
	table := n.table(pod.NetNS)
	if left, err := table.Unanswered(steer.Pod{Redirects: []steer.Redirect{r4}}); err != nil || len(left) > 0 {
		t.Errorf("still waits for %v, %v", left, err)
	}
}

// A fallback that is lost for good takes pods out of steering; its proof brings them back. One that is only unproven does not.
func TestTendGivesBackWhenTheFallbackIsLost(t *testing.T) {
	n, pod := steeredPod(t, r4, r6)
	n.reconcile(no, true, map[string]int{Steered: 1})
	n.wantTable(pod, r4, r6)
	lost := func(a netip.Addr) Fallback {
		if a == r4.ClusterDNS {
			return Fallback{Lost: "nothing translates it"}
		}
		return Fallback{Verified: true}
	}
	for range 2 {
		n.reconcile(lost, false, map[string]int{Steered: 1})
		n.wantTable(pod, r6)
		if got := n.states("a", "eth0"); got[0].State != podfile.Pending || got[0].Reason != "nothing translates it" || got[1].State != podfile.Steered {
			t.Errorf("given back: %+v", got)
		}
	}
	n.reconcile(func(netip.Addr) Fallback { return Fallback{Lost: "gone"} }, false, map[string]int{Pending: 1})
	n.wantLeaving(pod, r6)
	n.reconcile(yes, false, map[string]int{Steered: 1})
	n.wantTable(pod, r4, r6)
}

// Inodes of namespaces are reused. The file of a pod that is gone never steers the pod that has its inode or path now, and is swept.
func TestStaleFileNeverSteersAnotherPod(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod, other := n.AddPod("pod"), n.AddPod("other")
	stale := fileOf(pod, "a", "eth0", decisions(podfile.Steered, r4))
	stale.NetNS += "-gone"
	moved := fileOf(pod, "b", "eth0", decisions(podfile.Steered, r4)) // its path is another pod's now
	moved.NetNS = other.Path()
	mine := fileOf(pod, "c", "eth0", decisions(podfile.LeftAlone, r4))
	mine.OptOut = true
	for _, f := range []podfile.File{stale, moved, mine} {
		write(t, n.dir, f)
	}
	for range 2 {
		n.reconcile(yes, true, map[string]int{Gone: 2, LeftAlone: 1})
		n.wantTable(pod)
		n.wantTable(other)
	}
	for _, err := range n.RemoveTables(t.Context()) {
		t.Errorf("cleanup: %v", err)
	}
	hourAgo := time.Now().Add(-deadFor - time.Second)
	for k := range n.dead {
		n.dead[k] = hourAgo
	}
	n.dead[key{"c", "eth0"}] = hourAgo // it lives, whatever was thought before
	write(t, n.dir, fileOf(other, "b", "eth0", decisions(podfile.LeftAlone, r4)))
	n.reconcile(yes, true, map[string]int{Gone: 1, LeftAlone: 2})
	if _, err := os.Stat(podfile.Path(n.dir, "a", "eth0")); !os.IsNotExist(err) {
		t.Errorf("the file of a pod that is gone for an hour: %v", err)
	}
	for _, id := range []string{"b", "c"} {
		n.states(id, "eth0")
	}
}

// steer.mode decides while pods run: none removes every pod's table and runs no trial, also of a pod that comes then. A pod that is
// selected again is tried and steered. Whatever a pod's state was, it follows.
func TestPodsFollowTheMode(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	excluded := map[string]bool{}
	n.Excludes = func(f podfile.File) string {
		if excluded[f.ContainerID] {
			return "steer.mode is none"
		}
		return ""
	}
	ids := []string{"steered", "waiting", "untried", "bypassed", "opted-out"}
	pods := map[string]*testutil.Pod{}
	for _, id := range ids {
		pods[id] = n.AddPod(id)
		f := fileOf(pods[id], id, "eth0", decisions(podfile.Pending, r4, r6))
		for i := range f.Decisions {
			switch d := &f.Decisions[i]; id {
			case "untried":
				d.Untried = true
			case "bypassed":
				d.Unanswered = []string{"udp"}
			case "opted-out":
				d.State, f.OptOut = podfile.LeftAlone, true
			}
		}
		write(t, n.dir, f)
		if id == "steered" {
			n.reconcile(yes, true, map[string]int{Steered: 1})
		}
	}
	for _, id := range ids {
		excluded[id] = true
	}
	n.reconcile(yes, false, map[string]int{LeftAlone: len(ids)})
	write(t, n.dir, fileOf(n.AddPod("late"), "late", "eth0", untried(r4, r6)))
	excluded["late"] = true
	if due := n.DueTrials(held, yes); due.Fault != nil || len(due.Trials) > 0 {
		t.Errorf("trials of pods that are not selected: %+v", due)
	}
	n.Pods = open(n.dir, n.Host.Path(), slog.New(slog.DiscardHandler)) // the next agent reads what is in force
	n.Excludes = func(f podfile.File) string {
		return map[bool]string{true: "steer.mode is none"}[excluded[f.ContainerID]]
	}
	n.reconcile(yes, true, map[string]int{LeftAlone: len(ids) + 1})
	for _, id := range append(ids, "late") {
		for _, d := range n.states(id, "eth0") {
			if d.State != podfile.LeftAlone || d.Excluded != (id != "opted-out") || d.Excluded && d.Reason != "steer.mode is none" {
				t.Errorf("%s, mode none: %+v", id, d)
			}
		}
	}
	for id, pod := range pods {
		n.wantTable(pod)
		excluded[id] = id == "waiting"
	}
	n.reconcile(yes, false, map[string]int{LeftAlone: 3, Pending: 3})
	n.try(held, true)
	n.reconcile(yes, false, map[string]int{LeftAlone: 3, Steered: 3})
	for id, pod := range pods {
		if id == "waiting" || id == "opted-out" {
			n.wantTable(pod)
		} else {
			n.wantTable(pod, r4, r6)
		}
	}
}
