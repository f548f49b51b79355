// Package scrape makes collectors for Prometheus of values that the program counts by itself.
//
// It guarantees that values are read at each scrape only, so that exporting them costs a query nothing.
//
// On failure: a wrong number of labels panics at the scrape, as in client_golang.
package scrape

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Set is a collector of metrics. Add the metrics, then call Read; the zero value is ready.
type Set struct {
	descs []*prometheus.Desc
	read  func(to chan<- prometheus.Metric)
}

// Metric is one metric of a Set.
type Metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Counter adds a counter.
func (s *Set) Counter(name, help string, labels ...string) Metric {
	return s.add(prometheus.CounterValue, name, help, labels)
}

// Gauge adds a gauge.
func (s *Set) Gauge(name, help string, labels ...string) Metric {
	return s.add(prometheus.GaugeValue, name, help, labels)
}

func (s *Set) add(kind prometheus.ValueType, name, help string, labels []string) Metric {
	m := Metric{prometheus.NewDesc(name, help, labels, nil), kind}
	s.descs = append(s.descs, m.desc)
	return m
}

// Read sets the function that sends the values at each scrape. It returns the set, to be registered.
func (s *Set) Read(f func(to chan<- prometheus.Metric)) prometheus.Collector {
	s.read = f
	return s
}

// Describe implements prometheus.Collector.
func (s *Set) Describe(to chan<- *prometheus.Desc) {
	for _, d := range s.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(to chan<- prometheus.Metric) { s.read(to) }

// Send sends a value, with the values of the metric's labels.
func (m Metric) Send(to chan<- prometheus.Metric, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

// Register registers a collector and returns it, or the one of the same type that has its metrics already.
func Register[T prometheus.Collector](with prometheus.Registerer, c T) (T, error) {
	err := with.Register(c)
	if there := (prometheus.AlreadyRegisteredError{}); errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(T); ok {
			return old, nil
		}
	}
	return c, err
}

// Bool is 1 for true and 0 for false.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
