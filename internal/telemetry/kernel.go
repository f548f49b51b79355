package telemetry

import "github.com/prometheus/client_golang/prometheus"

// KernelHits are the hits that the kernel serves.
type KernelHits struct {
	OK                  bool // it serves
	Auto                bool // it serves only where that is possible: elsewhere there is no series neardns_kernel_ok
	Pods, Refused, Lent int  // pods that it serves, pods that it does not serve although they should be, offloaded entries
	Series              []KernelSeries
	Copies              map[string]uint64 // mirrored queries, by result; nil: it mirrors none
}

// KernelSeries are those of one type and response code.
type KernelSeries struct {
	Type, Rcode string
	Hits        uint64
}

// CollectKernelHits exports them at each scrape, where there are any. The kernel counts hits: they go on over the agent's restarts.
func (m *Metrics) CollectKernelHits(read func() (KernelHits, bool)) {
	m.registry.MustRegister(&kernelCollector{read: read,
		ok: prometheus.NewDesc(namespace+"_kernel_ok", "Whether hits are answered in the kernel where that is wanted; else the agent "+
			"answers them.", nil, nil),
		pods: prometheus.NewDesc(namespace+"_kernel_pods",
			"Pods whose hits are wanted in the kernel, by state: answered there, or refused.", []string{"state"}, nil),
		lent: prometheus.NewDesc(namespace+"_kernel_entries", "Answers that the kernel has.", nil, nil),
		hits: prometheus.NewDesc(namespace+"_kernel_hits_total", "Questions that the kernel answered, which coredns_* do not count.",
			[]string{"type", "rcode"}, nil),
		copies: prometheus.NewDesc(namespace+"_kernel_copies_total",
			"Questions that the kernel let pass for want of an answer, by what became of the copy for this agent.", []string{"result"}, nil)})
}

type kernelCollector struct {
	read                         func() (KernelHits, bool)
	ok, pods, lent, hits, copies *prometheus.Desc
}

func (c *kernelCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.ok, c.pods, c.lent, c.hits, c.copies} {
		ch <- d
	}
}

func (c *kernelCollector) Collect(ch chan<- prometheus.Metric) {
	k, on := c.read()
	if !on {
		return
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	ok := 0
	if k.OK {
		ok = 1
	}
	if k.OK || !k.Auto {
		gauge(c.ok, ok)
	}
	gauge(c.pods, k.Pods, "answered")
	gauge(c.pods, k.Refused, "refused")
	gauge(c.lent, k.Lent)
	for _, s := range k.Series {
		ch <- prometheus.MustNewConstMetric(c.hits, prometheus.CounterValue, float64(s.Hits), s.Type, s.Rcode)
	}
	for result, n := range k.Copies {
		ch <- prometheus.MustNewConstMetric(c.copies, prometheus.CounterValue, float64(n), result)
	}
}
