package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/telemetry/scrape"
)

// KernelHits has the metrics of the hits that the kernel program serves.
type KernelHits struct {
	OK            bool // the kernel program serves hits
	Auto          bool // kernelHits.mode is auto: unless OK is set, neardns_kernel_ok is not exported
	Pods, Refused int  // pods whose hits the kernel answers, and pods whose hits it does not answer although that is wanted
	Entries       int  // offloaded entries
	Series        []KernelSeries
	Copies        map[string]uint64 // queries by what became of their mirrored copy; nil: the kernel mirrors none
}

// KernelSeries has the hits of one query type and response code.
type KernelSeries struct {
	Type, Rcode string
	Hits        uint64
}

// CollectKernelHits exports KernelHits at each scrape if read returns true. The kernel keeps the counts of hits, so these continue over
// the agent's restarts.
func (m *Metrics) CollectKernelHits(read func() (KernelHits, bool)) {
	var s scrape.Set
	ok := s.Gauge(namespace+"_kernel_ok",
		"Whether hits are answered in the kernel where that is wanted; else the agent answers them, or kube-dns with arrangement transparent.")
	pods := s.Gauge(namespace+"_kernel_pods", "Pods whose hits are wanted in the kernel, by state: answered there, or refused.", "state")
	entries := s.Gauge(namespace+"_kernel_entries", "Answers that the kernel has.")
	hits := s.Counter(namespace+"_kernel_hits_total", "Queries that the kernel answered, which coredns_* do not count.", "type", "rcode")
	copies := s.Counter(namespace+"_kernel_copies_total",
		"Queries that the kernel passed on because it had no answer, by what became of the copy for this agent.", "result")
	m.Collect(s.Read(func(to chan<- prometheus.Metric) {
		k, on := read()
		if !on {
			return
		}
		if k.OK || !k.Auto {
			ok.Send(to, scrape.Bool(k.OK))
		}
		pods.Send(to, float64(k.Pods), "answered")
		pods.Send(to, float64(k.Refused), "refused")
		entries.Send(to, float64(k.Entries))
		for _, s := range k.Series {
			hits.Send(to, float64(s.Hits), s.Type, s.Rcode)
		}
		for result, n := range k.Copies {
			copies.Send(to, float64(n), result)
		}
	}))
}
