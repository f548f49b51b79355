package searchpath

import (
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

// How long a decision is kept. With the minimum, the A and AAAA queries of a lookup get the same decision, and later queries of the
// resolver's own walk are recognised (walked). The maximum is kube-dns's TTL, so that no decision is older than an answer may be.
const (
	minKeep = 5 * time.Second
	maxKeep = 30 * time.Second
)

// remembered is the number of decisions, each of one pod and name, at which Memory evicts a part: about 1 MiB with usual names, at most
// 5 MiB. Walks in progress are not evicted.
const remembered = 4096

// Memory has recent decisions, by pod and name. All server blocks of a process share one Memory. It is safe for concurrent use.
type Memory struct {
	now func() time.Time

	mu    sync.Mutex // guards the field below
	known map[decisionKey]*decision
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{now: time.Now, known: map[decisionKey]*decision{}} }

// decisionKey is a pod, represented by its Search, and a name. Pods with equal search lists share no decisions, because only a pod's own
// queries show whether its resolver is walking the list itself.
type decisionKey struct {
	search *Search
	name   string
}

// end is where a walk ends.
type end struct {
	target string   // the name of the walk that has addresses; "" if there is none, or the resolver must walk the list itself
	first  bool     // target is the first name of the walk
	absent bool     // no name of the walk exists
	ttl    uint32   // how long the walk's denials are valid, in seconds from its start; at most maxKeep
	denial []dns.RR // the SOA of the denial of the walk's first name
}

// decision is the result of a walk. After done is closed, its fields do not change and may be read without a lock.
type decision struct {
	end
	done  chan struct{}
	begun time.Time
	until time.Time
}

// walked reports whether there is a decision about k, or a walk in progress. If so, the pod queried the name a moment ago, and its resolver
// may be walking the list itself. It may do so even after a completed walk: a program that wants one family goes on if only the other
// family has an address.
func (m *Memory) walked(k decisionKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.known[k]
	return d != nil && !m.over(d)
}

// left returns how many seconds longer the denials of a walk are valid. A decision may be kept longer, so that all queries of one lookup
// get the same one; left then returns 0.
func (m *Memory) left(d *decision) uint32 {
	good := d.begun.Add(time.Duration(d.ttl) * time.Second)
	return uint32((max(0, good.Sub(m.now())) + time.Second - 1) / time.Second)
}

func (m *Memory) over(d *decision) bool { return !d.until.IsZero() && !m.now().Before(d.until) }

// decide returns the decision about k. If there is none, it calls walk; other queries about k wait for the result. If walk takes longer
// than maxWalk, the decision for all of them is that the resolver walks the list itself, because the A and AAAA queries must get the same
// decision. The walk's queries in flight then continue in the background, because the resolver will probably send the same ones.
func (m *Memory) decide(k decisionKey, walk func(*end)) *decision {
	m.mu.Lock()
	if d := m.known[k]; d != nil && !m.over(d) {
		m.mu.Unlock()
		<-d.done
		return d
	}
	d := &decision{done: make(chan struct{}), begun: m.now()}
	m.evict()
	m.known[k] = d
	m.mu.Unlock()
	found := make(chan end, 1)
	go func() { // ends with its queries, each of which has a time limit
		var e end
		defer func() {
			// No caller recovers from a panic in this goroutine, and a panic over one name must not end the process.
			if p := recover(); p != nil {
				vars.Panic.Inc()
				clog.NewWithPlugin("searchpath").Errorf("Recovered from panic while walking for %q: %v\n%s", k.name, p, debug.Stack())
				e = end{}
			}
			found <- e
		}()
		walk(&e)
	}()
	patience := time.NewTimer(maxWalk)
	defer patience.Stop()
	select {
	case d.end = <-found:
	case <-patience.C:
	}
	m.mu.Lock()
	d.until = m.now().Add(min(max(time.Duration(d.ttl)*time.Second, minKeep), maxKeep))
	m.mu.Unlock()
	close(d.done)
	return d
}

// evict makes room if the memory is full. It removes expired decisions, and then decisions of the pods that have most, until at most three
// quarters of remembered are left. So it usually runs once per thousand new names, and a pod that queries ever new names loses its own
// decisions. Walks in progress stay.
func (m *Memory) evict() {
	if len(m.known) < remembered {
		return
	}
	of := map[*Search]int{}
	for k, d := range m.known {
		if m.over(d) {
			delete(m.known, k)
			continue
		}
		of[k.search]++
	}
	// share is the maximum of decisions that a pod keeps. Pods with fewer leave the difference to the others.
	share, left := 0, remembered*3/4
	counts := slices.Sorted(maps.Values(of))
	for i, n := range counts {
		share = left / (len(counts) - i)
		if n > share {
			break
		}
		left -= n
	}
	for k, d := range m.known {
		if of[k.search] > share && !d.until.IsZero() {
			delete(m.known, k)
			of[k.search]--
		}
	}
}

// forget removes all decisions. A walk in progress still answers the queries that wait for it.
func (m *Memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.known)
}
