package metrics

import (
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// sample has what the metrics need to know of one query.
type sample struct {
	start time.Time
	size  int
	qtype uint16
	do    bool
	tcp   bool
	v6    bool
}

// series has the children of CoreDNS's metric vectors for one server address and zone. Their label view is empty: the plugin view is not
// linked. A child is looked up when it is first needed, because a series that was never counted must not be exported as zero.
type series struct {
	server, zone string

	duration     prometheus.Observer
	do           lazy[prometheus.Counter]
	requestSize  [2]lazy[prometheus.Observer]        // by protocol: UDP, TCP
	responseSize [2]lazy[prometheus.Observer]        // by protocol
	requests     [2][2][256]lazy[prometheus.Counter] // by protocol, family, and type as typeOf returns it
	responses    answers.CowMap[answerKey, prometheus.Counter]
}

type answerKey struct {
	rcode  int
	plugin string
}

func newSeries(key seriesKey) *series {
	s := &series{zone: key.zone}
	if key.server != nil {
		s.server = key.server.Addr
	}
	s.duration = vars.RequestDuration.WithLabelValues(s.server, s.zone, "")
	return s
}

// answer has what the metrics need to know of one answer.
type answer struct {
	rcode, size int
	plugin      string // name of the plugin that wrote the answer
}

func (s *series) report(q *sample, a *answer) {
	proto, family := index(q.tcp), index(q.v6)
	if q.do {
		s.do.get(func() prometheus.Counter {
			return vars.RequestDo.WithLabelValues(s.server, s.zone, "")
		}).Inc()
	}
	qtype := typeOf(q.qtype)
	s.requests[proto][family][qtype].get(func() prometheus.Counter {
		name := "other"
		if qtype != dns.TypeNone {
			name = dns.Type(qtype).String()
		}
		return vars.RequestCount.WithLabelValues(s.server, s.zone, "", protoNames[proto], familyNames[family], name)
	}).Inc()
	s.duration.Observe(time.Since(q.start).Seconds())
	s.responseSize[proto].get(func() prometheus.Observer {
		return vars.ResponseSize.WithLabelValues(s.server, s.zone, "", protoNames[proto])
	}).Observe(float64(a.size))
	s.requestSize[proto].get(func() prometheus.Observer {
		return vars.RequestSize.WithLabelValues(s.server, s.zone, "", protoNames[proto])
	}).Observe(float64(q.size))
	s.responses.Get(answerKey{a.rcode, a.plugin}, func(k answerKey) prometheus.Counter {
		return vars.ResponseRcode.WithLabelValues(s.server, s.zone, "", rcode.ToString(k.rcode), k.plugin)
	}).Inc()
}

// lazy is a metric that is looked up at its first use. Two look-ups at the same time find the same metric.
type lazy[T any] struct{ p atomic.Pointer[T] }

func (l *lazy[T]) get(find func() T) T {
	if p := l.p.Load(); p != nil {
		return *p
	}
	v := find()
	l.p.Store(&v)
	return v
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

var (
	protoNames  = [2]string{"udp", "tcp"}
	familyNames = [2]string{"1", "2"} // CoreDNS's numbers for IPv4 and IPv6
)

// typeOf returns a type that CoreDNS's label names; all are below 256. For every other type it returns TypeNone. It follows the list in
// CoreDNS's plugin/metrics/vars/monitor.go; a test compares them.
func typeOf(qtype uint16) uint16 {
	switch qtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeDNSKEY, dns.TypeDS, dns.TypeMX, dns.TypeNSEC3, dns.TypeNSEC,
		dns.TypeNS, dns.TypePTR, dns.TypeRRSIG, dns.TypeSOA, dns.TypeSRV, dns.TypeTXT, dns.TypeSVCB,
		dns.TypeHTTPS, dns.TypeIXFR, dns.TypeAXFR, dns.TypeANY:
		return qtype
	}
	return dns.TypeNone
}
