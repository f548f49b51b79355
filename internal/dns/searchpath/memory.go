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

// How long a decision is kept. The least lets the questions for both families, and those of a resolver that walks by itself,
// meet the same one; the most is kube-dns's TTL, so that no decision is older than an answer may be.
const (
	keepLeast = 5 * time.Second
	keepMost  = 30 * time.Second
)

// remembered is how many decisions are kept: about 1 MiB with usual names, at most 5.
const remembered = 4096

// Memory is what was decided of late, by pod and name. All server blocks of a process share one. It is safe for concurrent use.
type Memory struct {
	now func() time.Time

	mu    sync.Mutex // guards the field below
	known map[decisionKey]*decision
}

// NewMemory makes an empty one.
func NewMemory() *Memory { return &Memory{now: time.Now, known: map[decisionKey]*decision{}} }

// decisionKey is a pod, by its Search, and a name. Pods with equal lists share nothing: whether a resolver is walking by itself
// shows only in its own pod's queries.
type decisionKey struct {
	search *Search
	name   string
}

// end is where a walk ends.
type end struct {
	question string   // the one that has addresses; "" where the resolver has to walk by itself
	first    bool     // it is the walk's first one
	absent   bool     // none of them exists
	ttl      uint32   // seconds from the walk's begin: how long all of this is good
	denial   []dns.RR // the first question's SOA
}

// decision is what was decided. Its fields are read only when until is set, which comes last, or after done is closed; they do not
// change then.
type decision struct {
	end
	done  chan struct{}
	begun time.Time
	until time.Time
}

// walked reports whether k was asked about just now, so that its resolver may be walking by itself. It may even where the walk
// was completed: a program that wants one family alone goes on where there is only the other's address.
func (m *Memory) walked(k decisionKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.known[k]
	return d != nil && !m.over(d)
}

// left is for how many seconds more the denials on the way to a decision are good. A decision may be kept for longer than they
// are, so that one lookup's questions meet the same one; then it is 0.
func (m *Memory) left(d *decision) uint32 {
	good := d.begun.Add(time.Duration(d.ttl) * time.Second)
	return uint32((max(0, good.Sub(m.now())) + time.Second - 1) / time.Second)
}

func (m *Memory) over(d *decision) bool { return !d.until.IsZero() && !m.now().Before(d.until) }

// decide returns the decision about k, which walk makes unless there is one; who comes meanwhile waits for it. Where walk takes
// longer than walkMost the decision is that the resolver walks by itself, for all who wait, since the questions for both
// families must meet the same one. walk then goes on for what it is still asking, which others may ask next.
func (m *Memory) decide(k decisionKey, walk func(*end)) *decision {
	m.mu.Lock()
	if d := m.known[k]; d != nil && !m.over(d) {
		m.mu.Unlock()
		<-d.done
		return d
	}
	d := &decision{done: make(chan struct{}), begun: m.now()}
	m.room()
	m.known[k] = d
	m.mu.Unlock()
	found := make(chan end, 1)
	go func() { // ends with the questions that it asks, each of which has a bound of its own
		var e end
		defer func() {
			// Nobody above us catches it, and one name must not end the server.
			if p := recover(); p != nil {
				vars.Panic.Inc()
				clog.NewWithPlugin("searchpath").Errorf("Recovered from panic while walking for %q: %v\n%s", k.name, p, debug.Stack())
				e = end{}
			}
			found <- e
		}()
		walk(&e)
	}()
	patience := time.NewTimer(walkMost)
	defer patience.Stop()
	select {
	case d.end = <-found:
	case <-patience.C:
	}
	m.mu.Lock()
	d.until = m.now().Add(min(max(time.Duration(d.ttl)*time.Second, keepLeast), keepMost))
	m.mu.Unlock()
	close(d.done)
	return d
}

// room makes some where there is none: what has ended goes, and of the rest enough that this is done once for a thousand names, from
// the pods that have most. So a pod that asks for ever new names loses its own decisions. What is being decided stays.
func (m *Memory) room() {
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
	// How many each pod may keep: those that have fewer leave their rest to the others.
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

// forget drops all decisions. Those that are being made are kept by who waits for them alone.
func (m *Memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.known)
}
