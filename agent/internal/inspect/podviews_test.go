package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestPodsText(t *testing.T) {
	odd := podfile.File{PodNamespace: "shop", PodName: "we\nb", Addresses: addrs("10.244.1.5"),
		Annotations: podfile.Annotations{Ignored: []podfile.Ignored{{What: "annotation neardns.io/steer", Why: "perhaps\tis neither true nor false"}}},
		DNS: &podfile.DNS{State: podfile.Overlaid, Method: podfile.MethodFile,
			Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:1"}}},
		Decisions: []podfile.Decision{{State: podfile.Steered}}}
	views := []PodView{viewOf(odd), viewOf(podfile.File{ContainerID: "0123456789abcdef", IfName: "eth0"})}
	views[0].Counts = &podindex.Counts{Queries: 7, Hits: 5, NXDomain: 2, Failures: 1}
	want := `POD               ADDRESSES   CLUSTER DNS  NAMESERVERS  SEARCH  OPTIONS  OVERLAY          QUERIES  HITS  IN KERNEL  NXDOMAIN  FAILURES
shop/we?b         10.244.1.5  steered      10.96.0.10   a.b     ndots:1  overlaid (file)  7        5     0          2         1
0123456789abc     -           -            -            -       -        -                -        -     -          -         -
shop/we?b: ignored: annotation neardns.io/steer: perhaps?is neither true nor false
`
	testutil.Equal(t, "pods", squeeze(want), squeeze(PodsText(views)))
	if text := PodsText(nil); !strings.HasPrefix(text, "no pods") {
		t.Error(text)
	}
}

// squeeze makes the widths of columns not matter.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(lines, "\n")
}

// A pod that names a local address counts as served, whether it is steered or not; a pod whose queries never reach this agent does not.
func TestServed(t *testing.T) {
	local := netip.MustParseAddr("169.254.20.10")
	for want, d := range map[string]podfile.Decision{
		"served": {State: podfile.Steered, Local: local}, "given-back": {State: podfile.Pending, Unanswered: []string{"udp"}, Local: local},
		"left-alone": {State: podfile.LeftAlone, Reason: "macvlan", Local: local}, "steered": {State: podfile.Steered},
		"left-alone (steer.mode)": {State: podfile.LeftAlone, Excluded: true},
	} {
		testutil.Equal(t, fmt.Sprintf("%+v", d), want, stateOf(d))
	}
	if got := stateOf(podfile.Decision{State: podfile.Pending, Local: local}); got != "served" {
		t.Errorf("a pod that asks the switch needs no proof to be served, and is %s", got)
	}
}
