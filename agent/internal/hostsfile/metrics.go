package hostsfile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "neardns"

// counts are the role's counters. Names of Services are in the status only: as labels, every client of the endpoint would see them.
type counts struct {
	questions map[string]prometheus.Counter
	writes    map[string]prometheus.Counter
	repairs   prometheus.Counter
	all       []prometheus.Collector
}

func newCounts() *counts {
	questions := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_questions_total",
		Help: "Queries to the cluster DNS addresses for the hosts file, by result."}, []string{"result"})
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_writes_total",
		Help: "Writes of the hosts file, by result. A file that has its lines is not written."}, []string{"result"})
	c := &counts{questions: map[string]prometheus.Counter{}, writes: map[string]prometheus.Counter{},
		repairs: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "hosts_repairs_total",
			Help: "How often lines had to be put back that another program had taken out of the hosts file."})}
	for _, r := range []string{"answered", "denied", "failed"} {
		c.questions[r] = questions.WithLabelValues(r)
	}
	for _, r := range []string{"ok", "failed"} {
		c.writes[r] = writes.WithLabelValues(r)
	}
	c.all = []prometheus.Collector{questions, writes, c.repairs}
	return c
}

func (c *counts) question(r reply) {
	switch {
	case r.err != nil:
		c.questions["failed"].Inc()
	case r.denied():
		c.questions["denied"].Inc()
	default:
		c.questions["answered"].Inc()
	}
}

func (c *counts) write(written bool, err error) {
	switch {
	case err != nil:
		c.writes["failed"].Inc()
	case written:
		c.writes["ok"].Inc()
	}
}

// Collector returns the role's metrics.
func (h *Hosts) Collector() prometheus.Collector { return collector{h} }

type collector struct{ *Hosts }

// Descriptions of the gauges, which are read from the state at each scrape.
func services() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_hosts_services", "Services of hosts.services, by how they stand in the hosts file: current; stale "+
		"(kube-dns has not answered for five minutes); missing (no line, as there is no such Service, or none was answered yet); foreign "+
		"(a line "+
		"that is not ours has one of the names).", []string{"state"}, nil)
}

func fileOK() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_hosts_file_ok",
		"Whether the hosts file could be read and written at the last try (1), or not (0).", nil, nil)
}

func fighting() *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_hosts_fighting", "Whether another program keeps taking our lines out, so that repairs are "+
		"fewer (1).", nil, nil)
}

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range c.counts.all {
		one.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{services(), fileOK(), fighting()} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.counts.all {
		one.Collect(ch)
	}
	s := c.State()
	states := map[string]float64{"current": 0, "stale": 0, "missing": 0, "foreign": 0}
	for _, service := range s.Services {
		states[string(StandingOf(service, s.Since, time.Now()))]++
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(services(), prometheus.GaugeValue, n, state)
	}
	gauge := func(d *prometheus.Desc, on bool) {
		value := 0.0
		if on {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(fileOK(), s.Fault == "" && !s.Looked.IsZero())
	gauge(fighting(), s.Fighting)
}
