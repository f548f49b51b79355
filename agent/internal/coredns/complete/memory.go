package complete

import (
	"sync"
	"time"

	"github.com/miekg/dns"
)

// How long a decision is kept. The least lets the questions for both families, and those of a resolver that walks by itself,
// meet the same one; the most is kube-dns's TTL, so that no decision is older than an answer may be.
const (
	keepLeast = 5 * time.Second
	keepMost  = 30 * time.Second
)

// remembered is how many decisions are kept: about 1 MiB.
const remembered = 4096

// Memory is what was decided of late, by search list and name. All server blocks of a process share one. It is safe for
// concurrent use.
type Memory struct {
	now func() time.Time

	mu    sync.Mutex // guards the field below
	known map[decisionKey]*decision
}

// NewMemory makes an empty one.
func NewMemory() *Memory { return &Memory{now: time.Now, known: map[decisionKey]*decision{}} }

type decisionKey struct{ search, name string }

// decision is where a walk ends. Its fields are read only when until is set, which comes last, or after done is closed; they do
// not change then.
type decision struct {
	done chan struct{}

	question string   // the one that has addresses; "" where the resolver has to walk by itself
	first    bool     // it is the walk's first one
	absent   bool     // none of them exists
	ttl      uint32   // seconds: how long all of this is good
	denial   []dns.RR // the first question's SOA
	until    time.Time
}

// walked reports whether k was asked about just now, so that its resolver may be walking by itself. It may even where the walk
// was completed: a program that wants one family alone goes on where there is only the other's address.
func (m *Memory) walked(k decisionKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.known[k]
	return d != nil && !m.over(d)
}

// left is for how many seconds more a decision is good.
func (m *Memory) left(d *decision) uint32 {
	return min(d.ttl, uint32((max(0, d.until.Sub(m.now()))+time.Second-1)/time.Second))
}

func (m *Memory) over(d *decision) bool { return !d.until.IsZero() && !m.now().Before(d.until) }

// decide returns the decision about k, which walk makes unless there is one; who comes meanwhile waits for it.
func (m *Memory) decide(k decisionKey, walk func(*decision)) *decision {
	m.mu.Lock()
	if d := m.known[k]; d != nil && !m.over(d) {
		m.mu.Unlock()
		<-d.done
		return d
	}
	d := &decision{done: make(chan struct{})}
	m.room()
	m.known[k] = d
	m.mu.Unlock()
	defer func() { // also when walk panics: who waits must not wait forever
		m.mu.Lock()
		d.until = m.now().Add(min(max(time.Duration(d.ttl)*time.Second, keepLeast), keepMost))
		m.mu.Unlock()
		close(d.done)
	}()
	walk(d)
	return d
}

// room makes some where there is none: what has ended goes, and of the rest enough that this is done once for a thousand names.
// What is being decided stays.
func (m *Memory) room() {
	if len(m.known) < remembered {
		return
	}
	for k, d := range m.known {
		if m.over(d) {
			delete(m.known, k)
		}
	}
	for k, d := range m.known {
		if len(m.known) <= remembered*3/4 {
			return
		}
		if !d.until.IsZero() {
			delete(m.known, k)
		}
	}
}

// forget drops all decisions. Those that are being made are kept by who waits for them alone.
func (m *Memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.known)
}
