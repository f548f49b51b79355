package inspect

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/overview"
)

// Overview returns the node's state as a running agent reports it to kubectl-neardns. inKernel is the number of kernel hits since the
// agent started. If tenants is false, it names no pod.
func Overview(s node.Status, views []PodView, inKernel uint64, tenants bool, now time.Time) overview.Node {
	o := overview.Node{Version: s.Version, Instance: s.Instance, Started: s.Started, Time: now, Serving: s.Ready && len(s.Faults) == 0,
		Arranged: s.Arranged, Leases: append([]overview.Lease{}, s.Leases...), Faults: map[string]string{}, States: map[string]int{},
		Counts: overview.Counts{Queries: inKernel, Hits: inKernel, Kernel: inKernel}}
	if c := s.Cache; c != nil {
		o.Counts.Queries += uint64(c.Hits + c.Misses)
		o.Counts.Hits += uint64(c.Hits)
	}
	for _, r := range s.Redirects {
		o.Steering = append(o.Steering, r.Steering)
	}
	what := func(part, text string) string {
		if !tenants && (part == "pods" || part == "trials") { // texts of these parts name pods
			return "`neardns-agent status` on the node names the pods"
		}
		return text
	}
	for part, text := range s.Faults {
		o.Faults[part] = what(part, text)
	}
	if f := s.LastFault; f != nil {
		o.LastFault = &overview.Fault{Time: f.Time, Part: f.Part, What: what(f.Part, f.What)}
	}
	for _, v := range views {
		o.States[steered(v.Decisions)]++
	}
	if tenants {
		o.Pods = topOf(views)
	}
	return o
}

// topOf adds up the counts of each pod's interfaces, and returns the pods with the most queries.
func topOf(views []PodView) []overview.Pod {
	pods := map[string]overview.Pod{}
	for _, v := range views {
		name := cmp.Or(v.Pod, shortID(v.Container))
		p, known := pods[name]
		if !known {
			p = overview.Pod{Pod: name, State: steered(v.Decisions)}
		}
		if v.Counts != nil {
			p.Counts = p.Counts.Add(*v.Counts)
		}
		pods[name] = p
	}
	out := slices.SortedFunc(maps.Values(pods), func(a, b overview.Pod) int {
		return cmp.Or(cmp.Compare(b.Counts.Queries, a.Counts.Queries), cmp.Compare(a.Pod, b.Pod))
	})
	return out[:min(len(out), overview.MaxPods)]
}
