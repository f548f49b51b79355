// Package workload has the queries that the bench sends, and their answers: W1 to W14, each made from a seed, so that every server
// gets the same in the same order. What an answer must be follows from the query's name alone; the upstream server (Answer)
// and the load generator's check of what came back are made from the same rule.
//
// It is pure: nothing in it opens a socket or reads a clock.
package workload

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
)

// Question is one query with all that its answer must be.
type Question struct {
	Name string // without the final dot, in the case in which it is queried
	Type uint16
	// Wire is the message behind its id, from the flags on.
	Wire []byte
	// Digits is where in Wire the number stands that makes a name one that was never queried; 0 for names that are queried again.
	Digits int
	Rcode  uint8
	Count  uint16 // of answer records
	First  []byte // how the data of each of them begins
}

// digits is how many digits the number of a unique name has.
const digits = 9

// Length is how many bytes of Wire are header and question, without an OPT record.
func (q *Question) Length() int { return 10 + len(q.Name) + 2 + 4 }

// Number writes the number of a unique name into a copy of Wire.
func (q *Question) Number(wire []byte, n int) {
	for i := q.Digits + digits - 1; i >= q.Digits; i-- {
		wire[i] = byte('0' + n%10)
		n /= 10
	}
}

// Workload is a series of queries.
type Workload struct {
	Name, Text string
	Questions  []Question
	Order      []int32 // what is queried, by index into Questions; then the same again
	Sockets    int     // of the client, where queries come at a fixed rate
	Restart    bool    // the server is restarted while it is queried 1,000 a second
}

// Names of the workloads, in the order of the report. Miss is what no cache can answer.
var Names = []string{"W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11", "W12", "W13", "W14", Miss}

// Miss is the workload of names that were never queried before.
const Miss = "miss"

// OnlyNew reports whether each query of a workload has a name that was never queried.
func OnlyNew(name string) bool { return name == Miss || name == "W13" || name == "W14" }

// Sockets is how many a client uses at a fixed rate, where a workload has nothing else.
const Sockets = 16

// The types that are queried.
const (
	TypeA    = 1
	TypeAAAA = 28
)

const (
	services = 20
	zone     = "bench.svc.cluster.local"
	outside  = "outside.example.net"
	payload  = 1232 // what Go's resolver announces (net/dnsclient_unix.go), and DNS Flag Day 2020 recommends
	long     = 1 << 15
	variants = 16 // of the case of one name, in W6
	outsides = 10_000
	fewer    = 1_000 // names outside the cluster, where a run is to be short
)

// search is what the kubelet and a cloud's DHCP give a pod of the namespace bench.
var search = []string{zone, "svc.cluster.local", "cluster.local", "internal.example.net"}

// New makes a workload by its name. The same seed makes the same one. Small leaves out most of the names outside the cluster.
func New(name string, seed uint64, small bool) (*Workload, error) {
	var own uint64 // of the workload, so that no two draw the same numbers
	for _, c := range []byte(name) {
		own = own<<8 | uint64(c)
	}
	m := maker{
		w:     &Workload{Name: name, Sockets: Sockets},
		rand:  rand.New(rand.NewPCG(seed, own)), //nolint:gosec // the same for the same seed, on purpose
		index: map[key]int32{},
	}
	others := outsides
	if small {
		others = fewer
	}
	switch name {
	case "W1":
		m.w.Text = "20 Services, A and AAAA"
		m.lookups(long, func() { m.both(m.service(), false) })
	case "W2":
		m.w.Text = "the same through ndots:5 with four search domains: 10 questions a lookup, 80 % NXDOMAIN"
		m.lookups(long, func() { m.expanded(m.service(), false) })
	case "W3":
		m.w.Text = fmt.Sprintf("half W2, half %d names outside the cluster by Zipf's law, TTL 5 to 300 s", others)
		pick := zipf(m.rand, others)
		m.lookups(4*long, func() {
			if m.rand.IntN(6) == 0 { // such a lookup is 10 queries, the other kind 2: as many queries of either
				m.expanded(m.service(), false)
			} else {
				m.both(fmt.Sprintf("host-%d.%s", pick(), outside), false)
			}
		})
	case "W4":
		m.w.Text = "20 headless Services of 50 addresses: answers of 870 bytes"
		m.lookups(long, func() { m.ask(fmt.Sprintf("many-%d.%s", m.rand.IntN(services), zone), TypeA, true) })
	case "W5":
		m.w.Text = "W2 with EDNS, as Go's resolver asks"
		m.lookups(long, func() { m.expanded(m.service(), true) })
	case "W6":
		m.w.Text = "W1 in mixed case (0x20), 16 ways of writing each name"
		m.lookups(long, func() { m.both(m.mixed(m.service()), false) })
	case "W7":
		m.w.Text = "W2 with 1 % names that were never asked"
		m.lookups(long, func() {
			m.expanded(m.service(), false)
			if m.rand.IntN(10) == 0 {
				m.unique("new", zone)
			}
		})
	case "W8":
		m.w.Text = "200 names with a TTL of 2 s; at 1,000 a second the server is started anew meanwhile"
		m.w.Restart = true
		m.lookups(long, func() { m.both(fmt.Sprintf("short-%d.%s", m.rand.IntN(200), zone), false) })
	case "W9":
		m.w.Text = "W2 from 110 sockets, as many as pods on a full node"
		m.w.Sockets = 110
		m.lookups(long, func() { m.expanded(m.service(), false) })
	case "W10":
		m.w.Text = "one Service"
		m.lookups(long, func() { m.both("w10-0."+zone, false) })
	case "W11":
		m.w.Text = "one name that does not exist"
		m.lookups(long, func() { m.both("missing."+zone, false) })
	case "W12":
		m.w.Text = fmt.Sprintf("%d names outside the cluster by Zipf's law, TTL 5 to 300 s", others)
		pick := zipf(m.rand, others)
		m.lookups(4*long, func() { m.both(fmt.Sprintf("host-%d.%s", pick(), outside), false) })
	case "W13":
		m.w.Text = "only new names outside the cluster"
		m.unique("new", outside)
	case "W14":
		m.w.Text = "only new names that do not exist"
		m.unique("missing", zone)
	case Miss:
		m.w.Text = "only names that were never asked"
		m.unique("new", zone)
	default:
		return nil, fmt.Errorf("no workload %q: there are %s", name, strings.Join(Names, ", "))
	}
	return m.w, nil
}

type key struct {
	name  string
	qtype uint16
}

// maker adds queries to a workload, each distinct one once.
type maker struct {
	w     *Workload
	rand  *rand.Rand
	index map[key]int32
}

func (m *maker) lookups(atLeast int, lookup func()) {
	for len(m.w.Order) < atLeast {
		lookup()
	}
}

// service is the name of a Service. Each workload has its own, so that none finds in the cache what another one left there, about to
// expire.
func (m *maker) service() string {
	return fmt.Sprintf("%s-%d.%s", strings.ToLower(m.w.Name), m.rand.IntN(services), zone)
}

// expanded is what a stub resolver queries under ndots:5 for a name with fewer dots.
func (m *maker) expanded(name string, edns bool) {
	for _, suffix := range search {
		m.both(name+"."+suffix, edns)
	}
	m.both(name, edns)
}

func (m *maker) both(name string, edns bool) {
	m.ask(name, TypeA, edns)
	m.ask(name, TypeAAAA, edns)
}

func (m *maker) ask(name string, qtype uint16, edns bool) {
	k := key{name, qtype}
	i, ok := m.index[k]
	if !ok {
		i = int32(len(m.w.Questions))
		m.index[k] = i
		m.w.Questions = append(m.w.Questions, newQuestion(name, qtype, edns))
	}
	m.w.Order = append(m.w.Order, i)
}

func (m *maker) unique(kind, parent string) {
	m.ask(fmt.Sprintf("%s-%0*d.%s", kind, digits, 0, parent), TypeA, false)
	q := &m.w.Questions[m.w.Order[len(m.w.Order)-1]]
	q.Digits = 10 + 1 + len(kind+"-")
}

// mixed writes a name in one of its cases.
func (m *maker) mixed(name string) string {
	variant := rand.New(rand.NewPCG(m.rand.Uint64N(variants), 1)) //nolint:gosec // a few ways of writing, on purpose
	out := []byte(name)
	for i, c := range out {
		if 'a' <= c && c <= 'z' && variant.IntN(2) == 0 {
			out[i] = c - 'a' + 'A'
		}
	}
	return string(out)
}

// zipf draws numbers below n, the k-th in proportion to 1/(k+1). The standard library's has exponents above 1 only.
func zipf(r *rand.Rand, n int) func() int {
	sums := make([]float64, n)
	sum := 0.0
	for k := range sums {
		sum += 1 / float64(k+1)
		sums[k] = sum
	}
	return func() int { return min(sort.SearchFloat64s(sums, r.Float64()*sum), n-1) }
}

func newQuestion(name string, qtype uint16, edns bool) Question {
	b := []byte{1, 0, 0, 1, 0, 0, 0, 0, 0, 0} // recursion desired; one query
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	b = binary.BigEndian.AppendUint16(append(b, 0), qtype)
	b = append(b, 0, 1)
	if edns {
		b[9] = 1
		b = append(b, 0, 0, 41)
		b = binary.BigEndian.AppendUint16(b, payload)
		b = append(b, 0, 0, 0, 0, 0, 0)
	}
	a := answerTo(name, qtype)
	q := Question{Name: name, Type: qtype, Wire: b, Rcode: a.rcode, Count: uint16(len(a.data))}
	if len(a.data) > 0 {
		q.First = a.data[0]
	}
	if len(a.data) > 1 { // servers rotate: what all of them begin with
		q.First = a.data[0][:len(a.data[0])-1]
	}
	return q
}

// Memory is a workload of so many names, each with one address: to fill a cache with.
func Memory(names int) *Workload {
	m := maker{w: &Workload{Name: "memory", Sockets: 1}, index: map[key]int32{}}
	for i := range min(names, math.MaxUint16) {
		m.ask(fmt.Sprintf("host-%d.%s", i, zone), TypeA, false)
	}
	return m.w
}
