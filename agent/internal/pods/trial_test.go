package pods

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// A TCP connection alone is no answer: a pod whose queries are dropped after the handshake stays bypassed, and comes back when
// they get through.
func TestTrialNeedsAnAnswerOverTCP(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "a", "eth0", untried(r4)))
	end := n.drop(pod, "ip daddr "+r4.Steering.String()+" tcp dport 53 tcp flags & psh == psh drop")
	testutil.Eventually(t, func() error {
		write(t, n.dir, fileOf(pod, "a", "eth0", untried(r4))) // what a slow machine made of it
		n.Pods = open(n.dir, n.Host.Path(), slog.New(slog.DiscardHandler))
		n.try(held, false)
		d := n.states("a", "eth0")[0]
		return testutil.ErrorIf(len(d.Unanswered) != 1 || d.Unanswered[0] != "tcp", "a pod with connections and without answers: %+v", d)
	})
	end()
	n.due("a", time.Hour)
	n.try(held, false) // its time has not come
	n.due("a", 0)
	n.try(held, true)
	n.reconcile(yes, false, map[string]int{Steered: 1})
}

// A path that is not steered shows nothing in the pod's table, so a lost query counts although the table steers another family.
func TestTrialNextToASteeredFamily(t *testing.T) {
	n, pod := steeredPod(t, r4)
	n.serve()
	write(t, n.dir, fileOf(pod, "a", "eth0", append(decisions(podfile.Steered, r4), untried(r6)...)))
	defer n.drop(pod, "ip6 daddr "+r6.Steering.String()+" drop")()
	n.try(held, false)
	if d := n.states("a", "eth0")[1]; len(d.Unanswered) != 2 || d.State != podfile.Pending {
		t.Errorf("a path without answers: %+v", d)
	}
}

// A trial needs answers over both protocols, so none runs until both leases are granted, and then one runs at once.
func TestTrialWaitsForBothLeases(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	write(t, n.dir, fileOf(n.AddPod("pod"), "a", "eth0", untried(r4)))
	overUDP := func(_ netip.Addr, p steer.Protocol) (since, renewed time.Time, held bool) {
		return time.Time{}, time.Now(), p == steer.UDP
	}
	if due := n.DueTrials(overUDP, yes); due.Fault != nil || len(due.Trials) > 0 || !due.Next.IsZero() {
		t.Errorf("without the lease over TCP: %+v", due)
	}
	n.try(held, true)
}

// A table that no file records, of a pod whose file was lost, is removed before the pod is tried: with it, no trial would be answered.
func TestUnrecordedTableIsRemoved(t *testing.T) {
	n, pod := steeredPod(t, r4, r6)
	n.serve()
	write(t, n.dir, fileOf(pod, "a", "eth0", untried(r4, r6)))
	n.Pods = open(n.dir, n.Host.Path(), slog.New(slog.DiscardHandler)) // the next agent
	n.reconcile(yes, true, map[string]int{Pending: 1})
	n.wantTable(pod)
	n.try(held, true)
	n.reconcile(yes, true, map[string]int{Steered: 1})
	n.wantTable(pod, r4, r6)
}

// A pod whose link is wanted for kernel hits has one in every state that it can be in.
func TestVethInEachState(t *testing.T) {
	n := newNode(t, testutil.PTP)
	pod := n.AddPod("pod")
	for _, state := range []podfile.State{podfile.Steered, podfile.LeftAlone, podfile.Pending} {
		index, name, err := n.Veth(fileOf(pod, "a", "eth0", decisions(state, r4)))
		if link := pod.HostLink().Attrs(); err != nil || index != link.Index || name != link.Name {
			t.Errorf("%s: link %d %s, %v", state, index, name, err)
		}
	}
	if _, _, err := n.Veth(fileOf(pod, "a", "eth0", nil)); err == nil {
		t.Error("a pod that sends no queries to the cluster DNS address has a link")
	}
}

// A trial that began before the pod was steered shows nothing about the steered path: the table takes its answers.
func TestTrialOfAnEarlierState(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	pod := n.AddPod("pod")
	write(t, n.dir, fileOf(pod, "a", "eth0", untried(r4)))
	due := n.DueTrials(held, yes)
	if due.Fault != nil || len(due.Trials) != 1 {
		t.Fatalf("%+v", due)
	}
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)))
	n.reconcile(yes, true, map[string]int{Steered: 1})
	end := n.drop(pod, "ip daddr "+r4.Steering.String()+" drop")
	n.RunTrial(t.Context(), due.Trials[0], held, young, yes)
	end()
	n.reconcile(yes, false, map[string]int{Steered: 1})
	n.wantTable(pod, r4)
}
