package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestOverview(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := node.Status{Version: "v1", Instance: "abc", Started: at, Ready: true, Faults: map[string]string{},
		Leases:    []node.LeaseStatus{{Address: addr("169.254.20.11"), Protocol: "udp", Held: true, Since: at}},
		LastFault: &node.Fault{Time: at, Part: "pods", What: "shop/web: no such file"}, Cache: &node.CacheStatus{Hits: 60, Misses: 30}}
	steered := []podfile.Decision{{State: podfile.Steered}}
	views := []PodView{
		{Pod: "shop/db", Decisions: []podfile.Decision{{State: podfile.Pending}}, Counts: &podindex.Counts{Queries: 1}},
		{Pod: "shop/web", Interface: "eth0", Decisions: steered,
			Counts: &podindex.Counts{Queries: 60, Hits: 40, Kernel: 10, NXDomain: 5, Failures: 2}},
		{Pod: "shop/web", Interface: "net1", Decisions: steered, Counts: &podindex.Counts{Queries: 4, Hits: 3}},
		{Container: "0123456789abcdef", Decisions: steered},
	}
	want := overview.Node{Version: "v1", Instance: "abc", Started: at, Time: at.Add(time.Minute), Serving: true,
		Leases: []overview.Lease{{Address: addr("169.254.20.11"), Protocol: "udp", Held: true, Since: at}}, Faults: map[string]string{},
		LastFault: &overview.Fault{Time: at, Part: "pods", What: "shop/web: no such file"},
		Counts:    overview.Counts{Queries: 100, Hits: 70, Kernel: 10}, States: map[string]int{"steered": 3, "pending": 1},
		Pods: []overview.Pod{{Pod: "shop/web", State: "steered",
			Counts: overview.Counts{Queries: 64, Hits: 43, Kernel: 10, NXDomain: 5, Failures: 2}},
			{Pod: "shop/db", State: "pending", Counts: overview.Counts{Queries: 1}}, {Pod: "0123456789abc", State: "steered"}}}
	testutil.Equal(t, "with tenants", want, Overview(s, views, 10, true, at.Add(time.Minute)))

	s.Faults["trials"] = "shop/web: operation not permitted"
	text, err := json.Marshal(Overview(s, views, 10, false, at))
	if err != nil || strings.Contains(string(text), "shop") || !strings.Contains(string(text), `"serving":false`) {
		t.Errorf("without tenants (%v): %s", err, text)
	}

	for i := range 2 * overview.MaxPods {
		views = append(views, PodView{Pod: fmt.Sprintf("many/pod-%d", i)})
	}
	if o := Overview(s, views, 0, true, at); len(o.Pods) != overview.MaxPods || o.Pods[0].Pod != "shop/web" {
		t.Errorf("%d pods, the first is %s", len(o.Pods), o.Pods[0].Pod)
	}
}
