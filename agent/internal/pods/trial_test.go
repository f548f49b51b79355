package pods

import (
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// A TCP connection alone is no answer: a pod whose queries are dropped after the handshake stays bypassed, and comes back when
// they get through.
func TestTrialNeedsAnAnswerOverTCP(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.serve()
	pod := n.AddPod("pod")
	f := fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4))
	f.Decisions[0].Untried = true
	write(t, n.dir, f)
	end := n.drop(pod, "ip daddr "+r4.Steering.String()+" tcp dport 53 tcp flags & psh == psh drop")
	n.try(held, false)
	if d := n.states("a", "eth0")[0]; len(d.Unanswered) != 1 || d.Unanswered[0] != "tcp" {
		t.Errorf("a pod with connections and without answers: %+v", d)
	}
	end()
	n.try(held, false) // its time has not come
	n.due("a")
	n.try(held, true)
	n.tend(func(netip.Addr) Fallback { return Fallback{Verified: true} }, false, map[string]int{Steered: 1})
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
