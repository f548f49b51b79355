package searchpath

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// result is the outcome of a query that may have been the first of a walk through a search list.
type result int

const (
	resultCompleted result = iota // answered with the answer for the name where the walk ends
	resultFirst                   // the queried name has addresses, so the walk ends with it
	resultAbsent                  // no name of the walk exists
	resultLeft                    // left to the resolver: resolvers differ, something failed, or the name has ndots dots or more
	resultLater                   // it may be a later query of the walk for a longer name
	results                       // the number of results
)

// Values of the label result, by result.
var resultNames = [results]string{"completed", "first", "absent", "left", "later"}

// Metrics counts, by result, the queries that may have been the first of a walk. One Metrics is enough for a process.
type Metrics struct{ counts [results]atomic.Uint64 }

func (m *Metrics) count(r result) { m.counts[r].Add(1) }

// Collector returns a collector of the counts, which reads them at each scrape.
func (m *Metrics) Collector() prometheus.Collector {
	var s scrape.Set
	completions := s.Counter("neardns_search_completions_total",
		"Queries of pods with search completion that end in the first domain of their search list, by result: completed (answered with "+
			"what the walk would have found), first (the name exists there), absent (no name of the walk exists), left (to the pod: "+
			"resolvers differ, something failed, or the name has ndots dots or more), later (may be part of the walk for a longer name).", "result")
	return s.Read(func(to chan<- prometheus.Metric) {
		for r, name := range resultNames {
			completions.Send(to, float64(m.counts[r].Load()), name)
		}
	})
}
