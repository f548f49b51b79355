package main

import (
	"cmp"
	"math"
	"slices"

	"github.com/neardns/neardns/integration/bench/paired"
)

// The names of what is measured: neardns as it comes, the same with hits in the kernel, the same with `fastPath: "off"`, and the server
// that they are held against; and a node without a cache.
const (
	ours     = "neardns"
	inKernel = "neardns, kernel hits"
	plain    = "neardns plain"
	stock    = "CoreDNS"
	bare     = "bare node"
)

// What stands in a cell's place of a workload where no workload is sent.
const (
	memoryLoad  = "memory"
	idleLoad    = "idle"
	dnsperfLoad = "dnsperf"
)

// cellKey names one figure: of a workload, sent in one way.
type cellKey struct {
	Workload string `json:"workload"`
	Measure  string `json:"measure"`
	Figure   string `json:"figure"`
}

// cell is one figure of one server, as measured round by round. Round i of one server and of another were taken one after the other.
type cell struct {
	cellKey
	Server string    `json:"server"`
	Rounds []float64 `json:"rounds"`
}

// figure reports what a figure is.
type figure struct {
	text, unit string
	more       bool // better if higher
}

var figureTexts = map[string]figure{
	"qps": {"answers a second", "/s", true}, "server": {"server's CPU per answer", "µs", false}, "node": {"whole node's CPU per answer", "µs", false},
	"hit": {"answered without the upstream", "%", true}, "lost": {"no right answer", "%", false},
	"kernel": {"hits answered in the kernel", "%", true},
	"p50":    {"median time", "µs", false}, "p90": {"90th percentile", "µs", false}, "p99": {"99th percentile", "µs", false}, "p99.9": {"99.9th percentile", "µs", false},
	"RSS": {"resident memory", "MiB", false}, "PSS": {"proportional memory", "MiB", false}, "anonymous": {"anonymous memory", "MiB", false},
	"cpu": {"CPU without queries, of one", "%", false}, "mean": {"mean time", "µs", false},
}

// add takes a round's value in.
func (r *report) add(k cellKey, server string, value float64) {
	i := slices.IndexFunc(r.Cells, func(c cell) bool { return c.cellKey == k && c.Server == server })
	if i < 0 {
		r.Cells = append(r.Cells, cell{cellKey: k, Server: server})
		i = len(r.Cells) - 1
	}
	// As many digits as a second run could repeat.
	r.Cells[i].Rounds = append(r.Cells[i].Rounds, round(value))
}

// round keeps four digits.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// rounds are a figure's values; nil where it was not measured.
func (r *report) rounds(k cellKey, server string) []float64 {
	for _, c := range r.Cells {
		if c.cellKey == k && c.Server == server {
			return c.Rounds
		}
	}
	return nil
}

// median of a figure; not a number where it was not measured.
func (r *report) median(k cellKey, server string) float64 {
	return paired.Median(r.rounds(k, server)).Median
}

// ratio is one server's figure to another's, from their rounds' own ratios.
func (r *report) ratio(k cellKey, of, to string) paired.Estimate {
	return paired.Ratios(r.rounds(k, of), r.rounds(k, to))
}

// others are the servers that are not neardns.
func (r *report) others() []string {
	return slices.DeleteFunc(r.servers(), isOurs)
}

func isOurs(server string) bool { return server == ours || server == inKernel || server == plain }

// subjects are neardns in the ways that it was measured.
func (r *report) subjects() []string {
	return slices.DeleteFunc(r.servers(), func(s string) bool { return !isOurs(s) })
}

// servers are those measured: neardns, the stock one, the others.
func (r *report) servers() []string {
	var out []string
	for _, c := range r.Cells {
		if !slices.Contains(out, c.Server) {
			out = append(out, c.Server)
		}
	}
	rank := func(s string) int { return slices.Index([]string{stock, plain, inKernel, ours}, s) }
	slices.SortStableFunc(out, func(a, b string) int { return -cmp.Compare(rank(a), rank(b)) })
	return out
}

// keys are all figures measured, in the order in which they first were.
func (r *report) keys() []cellKey {
	var out []cellKey
	seen := map[cellKey]bool{}
	for _, c := range r.Cells {
		if !seen[c.cellKey] {
			seen[c.cellKey] = true
			out = append(out, c.cellKey)
		}
	}
	return out
}
