package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/tick"
)

// spec is one server that a Corefile's directive lists.
type spec struct {
	nameserver.Address
	mark int // of the packets to it; 0: none
}

// Servers has the upstreams of all server blocks. Their connections, health and counters outlive a reload. It is safe for concurrent use.
type Servers struct {
	log     *slog.Logger
	roots   *x509.CertPool // nil: the system's
	maxAge  time.Duration
	born    time.Time // the zero of the servers' clock
	connect connect   // connectSocket, except in tests on virtual time
	bufs    buffers
	hedges  hedges
	nonces  sync.Map      // by name of a loop detection query in flight: whether it came back to this process (*atomic.Bool)
	shed    atomic.Uint64 // queries that were refused because all servers are failing and enough others probe them
	trouble tick.Chan     // see Trouble

	mu     sync.Mutex // guards the fields below
	byName map[string]*server
	blocks []*Block
}

// NewServers returns an empty Servers, which logs changes of the servers' health to log.
func NewServers(log *slog.Logger) *Servers {
	return &Servers{log: log, maxAge: defaultMaxAge, connect: connectSocket, born: time.Now(),
		byName: map[string]*server{}, trouble: tick.New()}
}

// acquire finds or makes a server. Each call needs a call of release.
func (ss *Servers) acquire(sp spec) *server {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	name := sp.String()
	s := ss.byName[name]
	if s == nil {
		s = &server{of: ss, name: name, addr: sp.Addr.String()}
		s.udp.bufs, s.tcp.bufs = &ss.bufs, &ss.bufs
		s.life, s.end = context.WithCancel(context.Background())
		if sp.TLS {
			name := cmp.Or(sp.ServerName, sp.Addr.Addr().String())
			s.tls = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ss.roots, ServerName: name,
				ClientSessionCache: tls.NewLRUClientSessionCache(4)}
		}
		ss.byName[name] = s
	}
	if mark := int64(sp.mark); mark != 0 && s.mark.Swap(mark) != mark { // the idle sockets lack the mark, for example after a reload
		s.udp.flush()
		s.tcp.flush()
	}
	s.refs++
	return s
}

// release undoes one acquire. The last release of a server closes it.
func (ss *Servers) release(s *server) {
	ss.mu.Lock()
	s.refs--
	last := s.refs == 0
	if last {
		delete(ss.byName, s.name)
	}
	ss.mu.Unlock()
	if last {
		s.close()
	}
}

func (ss *Servers) join(a *Block) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.blocks = append(ss.blocks, a)
}

func (ss *Servers) leave(a *Block) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.blocks = slices.DeleteFunc(ss.blocks, func(b *Block) bool { return b == a })
}

// Status is the state of one server.
type Status struct {
	Server     string    `json:"server"`
	Zones      []string  `json:"zones"`                // zones of the server blocks that list the server
	LastResort bool      `json:"lastResort,omitempty"` // it is the last resort of every block that lists it
	Failing    bool      `json:"failing,omitempty"`    // tried last, until it recovers
	Reason     string    `json:"reason,omitempty"`     // how it fails; "" if it does not
	Since      time.Time `json:"since,omitzero"`       // start of the present state; zero: it has never changed
	NoTCP      bool      `json:"noTCP,omitempty"`      // has not answered over TCP lately, only over UDP, so UDP is tried first
	Loops      []string  `json:"loops,omitempty"`      // first zones of the server blocks for which it leads back to this node and is not used
}

// Status lists the servers by name.
func (ss *Servers) Status() []Status {
	ss.mu.Lock()
	servers := slices.SortedFunc(maps.Values(ss.byName), func(a, b *server) int { return strings.Compare(a.name, b.name) })
	blocks := slices.Clone(ss.blocks)
	ss.mu.Unlock()
	out := make([]Status, 0, len(servers))
	for _, s := range servers {
		st := Status{Server: s.name, LastResort: true, NoTCP: s.prefersDatagrams(time.Now())}
		s.health.mu.Lock()
		if st.Failing, st.Since = s.health.failing.Load(), s.health.since; st.Failing {
			st.Reason = s.health.why.String()
		}
		s.health.mu.Unlock()
		for _, a := range blocks {
			at := slices.Index(a.list, s)
			if at < 0 {
				continue
			}
			st.LastResort = st.LastResort && at >= a.first
			st.Zones = append(st.Zones, a.zones...)
			if a.loops[at].Load() {
				st.Loops = append(st.Loops, a.zones[0])
			}
		}
		slices.Sort(st.Zones)
		st.Zones = slices.Compact(st.Zones)
		slices.Sort(st.Loops)
		st.Loops = slices.Compact(st.Loops)
		out = append(out, st)
	}
	return out
}

// Faults returns the problems that an operator should fix, in one line each: forwarding loops, and server blocks whose servers all fail or
// loop.
func (ss *Servers) Faults() []string {
	ss.mu.Lock()
	blocks := slices.Clone(ss.blocks)
	ss.mu.Unlock()
	var out []string
	for _, a := range blocks {
		failing := 0
		var names []string
		for i, s := range a.list {
			names = append(names, s.name)
			if a.loops[i].Load() {
				out = append(out, loopText(s.name, a.zones[0]))
				failing++
			} else if s.health.failing.Load() {
				failing++
			}
		}
		if failing == len(a.list) {
			out = append(out, fmt.Sprintf("no server answers well for %s: %s: check that they run and can be reached from this node, "+
				"or name others under upstreams", strings.Join(a.zones, ", "), strings.Join(names, ", ")))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// hedges is the budget for tries that start while another try of the same query runs (stepStartInBudget): one for ten queries, and
// maxHedges without savings, for a server that falls silent. Without it, an upstream that is slow because of overload would get every
// query twice.
type hedges struct{ saved, granted atomic.Int64 }

const (
	hedgeCost = 10  // queries that pay for one such try
	maxHedges = 100 // tries that need no savings; as many more can be saved up
)

func (h *hedges) earn() {
	if n := h.saved.Add(1); n > hedgeCost*maxHedges {
		h.saved.Store(hedgeCost * maxHedges)
	}
}

// spend takes a try from the budget, and reports whether one was left. saved may become negative: the first maxHedges tries need no
// savings.
func (h *hedges) spend() bool {
	if h.saved.Add(-hedgeCost) < -hedgeCost*maxHedges {
		h.saved.Add(hedgeCost)
		return false
	}
	h.granted.Add(1)
	return true
}
