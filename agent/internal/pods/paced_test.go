package pods

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/adoption"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestCensus is every pair of a pod's paths, each in any state, or in none.
func TestCensus(t *testing.T) {
	states := []podstate.State{0, podstate.Untried, podstate.Waiting, podstate.Steered, podstate.Bypassed, podstate.Unselected}
	for _, a := range states {
		for _, b := range states {
			both := []podstate.State{a, b}
			untried := slices.Contains(both, podstate.Untried)
			answered := slices.Contains(both, podstate.Waiting) || slices.Contains(both, podstate.Steered)
			before, after := adoption.Other, adoption.Other
			if untried {
				before, after = adoption.Waiting, adoption.Started
			} else if answered {
				after = adoption.Answered
			}
			if slices.Contains(both, podstate.Bypassed) {
				after = adoption.Unanswered
			}
			if got := [2]adoption.Pod{census(both, false), census(both, true)}; got != [2]adoption.Pod{before, after} {
				t.Errorf("paths %v: %v, want %v and %v", both, got, before, after)
			}
		}
	}
}

// adoptedFiles writes the files of untried adopted pods whose netns is gone, so that no trial has a result.
func adoptedFiles(t *testing.T, dir string, count int) {
	t.Helper()
	for i := range count {
		f := podfile.File{ContainerID: fmt.Sprintf("c%03d", i), IfName: "eth0", NetNS: "/run/netns/none", Adopted: podfile.ByCache}
		f.Decisions = untried(r4)
		write(t, dir, f)
	}
}

// Only one adopted pod is started at a time, none without a lease or a verified fallback, none that steer.mode does not select, and all
// that the plugin handled at once.
func TestAdoptionIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		p := registry(dir)
		adoptedFiles(t, dir, 30)
		tried := func(due Due) (ids []string) {
			for _, d := range due.Trials {
				ids = append(ids, d.file.ContainerID)
			}
			return ids
		}
		if due := p.DueTrials(held, no); len(due.Trials) > 0 {
			t.Errorf("without a fallback: trials of %v", tried(due))
		}
		if due := p.DueTrials(func(netip.Addr, steer.Protocol) (since, renewed time.Time, ok bool) { return }, yes); len(due.Trials) > 0 {
			t.Errorf("without a lease: trials of %v", tried(due))
		}
		p.Excludes = func(f podfile.File) string {
			if f.ContainerID < "c010" {
				return "steer.mode is namespaces"
			}
			return ""
		}
		first := p.DueTrials(held, yes)
		if got := tried(first); !slices.Equal(got, []string{"c010"}) || first.Next.IsZero() {
			t.Errorf("trials of %v, the next at %s", got, first.Next)
		}
		for i := range 3 { // new pods
			write(t, dir, podfile.File{ContainerID: fmt.Sprintf("d%d", i), IfName: "eth0", NetNS: "/run/netns/none", Decisions: untried(r4)})
		}
		time.Sleep(adoption.Pause)
		testutil.Equal(t, "trials", []string{"c011", "d0", "d1", "d2"}, tried(p.DueTrials(held, yes)))
		next := registry(dir) // adoptPods is off since the last start
		next.Excludes = func(f podfile.File) string {
			return map[bool]string{true: "adoptPods is false"}[WaitsForAdoption(f)]
		}
		testutil.Equal(t, "adoptPods off: trials", []string{"d0", "d1", "d2"}, tried(next.DueTrials(held, yes)))
		f := next.List()[0]
		for _, s := range []podfile.State{podfile.Steered, podfile.LeftAlone} { // a pod that was steered stays, one that was left out waits
			f.Decisions = decisions(s, r4)
			testutil.Equal(t, string(s)+": waits", s == podfile.LeftAlone, WaitsForAdoption(f))
		}
	})
}

// A path that an earlier agent bypassed is tried, although the pod's other path waits for its first trial.
func TestUntriedPathHoldsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := podfile.File{ContainerID: "c", IfName: "eth0", NetNS: "/run/netns/none", Adopted: podfile.ByCache}
		f.Decisions = append(decisions(podfile.Pending, r4), untried(r6)...)
		f.Decisions[0].Unanswered = []string{"udp"}
		write(t, dir, f)
		p, trials := registry(dir), 0
		only4 := func(a netip.Addr, _ steer.Protocol) (time.Time, time.Time, bool) {
			return time.Time{}, time.Now(), a.Is4()
		}
		for range 3600 {
			for _, one := range p.DueTrials(only4, yes).Trials {
				for _, d := range one.paths {
					if trials++; d.Redirect != r4 {
						t.Fatalf("trial of %v without a lease", d.Redirect)
					}
				}
			}
			time.Sleep(time.Second)
		}
		if trials == 0 {
			t.Error("the bypassed path is never tried")
		}
	})
}

// Adoption stops at the 20th pod if two of them are not answered: those stay on kube-dns and the others as they are. It goes on when their
// trials are answered.
func TestAdoptionStops(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	root := t.TempDir()
	n.Host.Run("nft", "add table netdev lost")
	var pods []*testutil.Pod
	lost := true
	for i := range 24 {
		id := fmt.Sprintf("c%02d", i)
		pod := n.AddPod(id)
		if pods = append(pods, pod); i < 2 {
			n.loseAtAgent(pod, id)
		}
		cache(t, root, pod, id, "eth0", map[string]string{})
	}
	n.adopter(root).scan(t.Context())
	step := func() Due {
		t.Helper()
		n.Pods.due.adoption = adoption.Adoption{} // the time has come
		due := n.DueTrials(held, yes)
		for _, one := range due.Trials {
			n.RunTrial(t.Context(), one, held, map[bool]time.Duration{true: young, false: testutil.Attempt}[lost && one.file.ContainerID < "c02"], yes)
		}
		n.FallbackOnly([]steer.Redirect{r4, r6})
		_, err := n.Reconcile(t.Context(), yes, false)
		testutil.Must(t, err)
		return due
	}
	count := func(s podstate.State) (count int) {
		for _, f := range n.List() {
			if slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return StateOf(d) == s }) {
				count++
			}
		}
		return count
	}
	for range 20 {
		if due := step(); due.Stopped != nil {
			t.Fatalf("too early: %v", due.Stopped)
		}
	}
	for range 3 {
		if due := step(); due.Stopped == nil {
			t.Error("adoption goes on")
		}
	}
	if b, u, s := count(podstate.Bypassed), count(podstate.Untried), count(podstate.Steered); b != 2 || u != 4 || s != 18 {
		t.Errorf("%d pods bypassed, %d untried, %d steered; want 2, 4 and 18", b, u, s)
	}
	for _, pod := range pods[:2] {
		n.wantTable(pod)
	}
	for _, pod := range pods[20:] {
		n.wantTable(pod)
	}
	n.Host.Run("nft", "delete table netdev lost")
	lost = false
	n.Pods.mu.Lock()
	for at, s := range n.paths {
		if s.State == podstate.Bypassed {
			s.Next = time.Now()
			n.paths[at] = s
		}
	}
	n.Pods.mu.Unlock()
	testutil.Eventually(t, func() error {
		due, b, u := step(), count(podstate.Bypassed), count(podstate.Untried)
		return testutil.ErrorIf(b != 0 || u != 0, "%d pods bypassed, %d untried, want none; adoption stopped: %v", b, u, due.Stopped)
	})
}

// loseAtAgent has a pod's link lose queries to the agent, by a chain of its own in the table "lost".
func (n *node) loseAtAgent(pod *testutil.Pod, chain string) {
	n.t.Helper()
	n.Host.RunInput(fmt.Sprintf(`table netdev lost {
	chain %s {
		type filter hook ingress device %q priority 0;
		ip daddr %s drop
		ip6 daddr %s drop
	}
}`, chain, pod.HostInterface, r4.Steering, r6.Steering), "nft", "-f", "-")
}

// A change of one file has only that file read again: the others may be as many as a node has.
func TestOneFileIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	p := registry(dir)
	adoptedFiles(t, dir, 3)
	p.List()
	p.mu.Lock()
	p.cached.watched = true
	p.mu.Unlock()
	for _, id := range []string{"c000", "c001"} { // in place, and without an event
		path := podfile.Path(dir, id, "eth0")
		text, err := os.ReadFile(path)
		testutil.Must(t, err)
		testutil.Must(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte("/run/netns/none"), []byte("/run/netns/next")), 0o600))
	}
	state := func() (out []string) {
		for _, f := range p.List() {
			out = append(out, f.ContainerID+" "+f.NetNS)
		}
		return out
	}
	want := func(what string, want ...string) {
		t.Helper()
		testutil.Equal(t, what, want, state())
	}
	f := p.List()[0]
	f.Decisions = decisions(podfile.Steered, r4)
	testutil.Must(t, p.writeDecisions(f))
	want("one written", "c000 /run/netns/next", "c001 /run/netns/none", "c002 /run/netns/none")
	write(t, dir, podfile.File{ContainerID: "b", IfName: "eth0", Decisions: decisions(podfile.Pending, r4)})
	testutil.Must(t, podfile.Remove(dir, "c002", "eth0"))
	for _, id := range []string{"b", "c002"} {
		p.outdateFile(fileName(podfile.File{ContainerID: id, IfName: "eth0"}))
	}
	want("one new, one gone", "b ", "c000 /run/netns/next", "c001 /run/netns/none")
	testutil.Must(t, os.WriteFile(podfile.Path(dir, "b", "eth0"), nil, 0o600))
	p.outdateFile(fileName(podfile.File{ContainerID: "b", IfName: "eth0"}))
	want("one unreadable: all are read", "c000 /run/netns/next", "c001 /run/netns/next")
	if _, errs := p.read(); len(errs) != 1 {
		t.Errorf("errors: %v", errs)
	}
	write(t, dir, podfile.File{ContainerID: "b", IfName: "eth0", Decisions: decisions(podfile.Pending, r4)})
	p.outdateFile(fileName(podfile.File{ContainerID: "b", IfName: "eth0"}))
	want("readable again", "b ", "c000 /run/netns/next", "c001 /run/netns/next")
}

// The fault of trials has one line for each change: a second pod, another text, and a trial of another pod are none.
func TestFailedTrials(t *testing.T) {
	a, b, c := podfile.File{ContainerID: "a"}, podfile.File{ContainerID: "b"}, podfile.File{ContainerID: "c"}
	all := []podfile.File{a, b, c}
	first, second := errors.New("of b"), errors.New("of a")
	f := failedTrials{of: map[key]error{}}
	for i, step := range []struct {
		of    podfile.File
		err   error
		there []podfile.File
		want  error
	}{
		{c, nil, all, nil},
		{b, first, all, first},
		{c, nil, all, first},
		{a, second, all, first},
		{b, errors.New("of b, from another port"), all, first},
		{b, nil, all, second},
		{c, nil, []podfile.File{b, c}, nil},
	} {
		f.note(keyOf(step.of), step.err)
		if got := f.fault(step.there); !errors.Is(got, step.want) || (got == nil) != (step.want == nil) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// A trial that the agent cannot run is a fault until one runs, and a steered pod's is repeated.
func TestTrialThatCannotRun(t *testing.T) {
	n, _ := steeredPod(t, r4)
	n.serve()
	at := path{key{"a", "eth0"}, r4}
	n.report(n.List()[0], n.List()[0].Decisions[0], podstate.TableBypasses, time.Now())
	due := n.DueTrials(held, yes)
	host := n.Pods.hostNS
	n.Pods.hostNS = "/run/netns/none"
	for _, one := range due.Trials {
		n.RunTrial(t.Context(), one, held, young, yes)
	}
	n.Pods.hostNS = host
	if again := n.DueTrials(held, yes); len(due.Trials) != 1 || again.Fault == nil || n.paths[at].Next.IsZero() {
		t.Fatalf("%d trials; fault %v; the next at %s", len(due.Trials), again.Fault, n.paths[at].Next)
	}
	n.due("a", 0)
	for _, one := range n.DueTrials(held, yes).Trials {
		n.RunTrial(t.Context(), one, held, young, yes)
	}
	if again := n.DueTrials(held, yes); again.Fault != nil {
		t.Error(again.Fault)
	}
}
