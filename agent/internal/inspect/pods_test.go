package inspect

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/clients"
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
)

func TestPodsText(t *testing.T) {
	yes := true
	odd := podfile.File{PodNamespace: "shop", PodName: "we\nb", Addresses: addrs("10.244.1.5"), SearchCompletion: &yes,
		DNS: &podfile.DNS{State: podfile.Overlaid, Lever: podfile.LeverFile,
			Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:1"}}},
		Ignored:   []podfile.Ignored{{What: "annotation neardns.io/steer", Why: "perhaps\tis neither true nor false"}},
		Decisions: []podfile.Decision{{State: podfile.Steered}}}
	conf := &config.Node{ClusterDomain: "cluster.local"}
	views := []PodView{viewOf(odd, clients.Completes(odd, conf)), viewOf(podfile.File{ContainerID: "0123456789abcdef", IfName: "eth0"}, false)}
	views[0].Counts = &clients.Counts{Queries: 7, Hits: 5, Failures: 1}
	want := `POD               ADDRESSES   CLUSTER DNS  NAMESERVERS  SEARCH  OPTIONS  OVERLAY          COMPLETION  QUERIES  HITS  FAILURES
shop/we?b         10.244.1.5  steered      10.96.0.10   a.b     ndots:1  overlaid (file)  on          7        5     1
0123456789abc     -           -            -            -       -        -                off         -        -     -
shop/we?b: ignored: annotation neardns.io/steer: perhaps?is neither true nor false
`
	if diff := cmp.Diff(squeeze(want), squeeze(PodsText(views))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
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
