package main

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// run is one fault on one stand.
type run struct {
	s      *stand
	begun  time.Time // of the load
	lead   time.Duration
	old    *testutil.Process // that has a successor
	before float64           // resident memory before, in MiB
	peak   float64           // and at most
	books  map[string]*load.Book
	outcome
}

// try puts a stand under load and a fault.
func try(s *stand, f fault, lead time.Duration) outcome {
	s.t.Helper()
	r := &run{s: s, lead: lead}
	what, known := deeds()[f.name]
	if !known {
		s.t.Fatalf("%s: nothing is done", f.name)
	}
	streams := usual
	if what.streams != nil {
		streams = what.streams
	}
	warm := 1.0
	if f.limit.kept > 0 { // a cache that is full to its last entry has not room for each of them
		warm = s.kept()
	}
	r.before = memory(s.pid())
	plan := load.Plan{Streams: streams(s), Duration: lead + f.length}
	if f.control {
		plan.Streams = append(plan.Streams, control(s))
	}
	s.misses.Clear()
	dropped := s.dropped()
	g := s.launch(s.pod, plan)
	r.begun = g.begun
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { r.watch(s.pid(), stop) })
	what.act(r)
	r.books = g.wait()
	close(stop)
	wg.Wait()
	for i, n := range s.dropped() {
		r.Dropped[i] = n - dropped[i]
	}
	r.sum()
	r.Reasons, r.Kept = map[string]int{}, -1
	for name, b := range r.books {
		r.Late = max(r.Late, b.Late)
		for reason, n := range b.Reasons {
			r.Reasons[name+": "+reason] += n
		}
	}
	if what.judge != nil {
		what.judge(r)
	}
	r.terminateOld()
	if f.limit.kept > 0 {
		r.Kept = min(warm, s.kept()) / max(warm, 1e-9) // none if nothing came from the cache before
	}
	return r.outcome
}

// dropped counts datagrams since the stand's begin, see outcome.
func (s *stand) dropped() (out [2]int) {
	s.t.Helper()
	for i, ns := range []*testutil.NetNS{s.node.Host, s.node.KubeDNS} {
		n, err := overflowed(ns)
		s.must(err)
		out[i] = n
	}
	return out
}

// sum sums the books up.
func (r *run) sum() {
	r.UDP, r.TCP, r.TCPLong, r.Line = r.books["udp"].All(), r.books["tcp"].All(), r.books["tcplong"].All(), r.books["udp"].Line()
	if b := r.books[controlName]; b != nil {
		r.Control = b.All()
	}
}

// at waits until so long after the fault's begin.
func (r *run) at(after time.Duration) {
	timer := time.NewTimer(time.Until(r.begun.Add(r.lead + after)))
	defer timer.Stop()
	<-timer.C
}

// since is how long ago the fault's begin was.
func (r *run) since() time.Duration { return time.Since(r.begun) - r.lead }

func (r *run) terminate() {
	r.s.t.Helper()
	if err := r.s.server.Terminate(15 * time.Second); err != nil {
		r.s.t.Logf("%s: after SIGTERM: %v", r.s.name, err)
	}
}

func (r *run) kill() {
	r.s.t.Helper()
	begun := time.Now()
	r.s.server.Kill()
	r.Died = time.Since(begun)
}

// succeed starts a successor; the stand's server is that one from here on.
func (r *run) succeed() {
	o, ok := r.s.subject.(*ours)
	if !ok {
		r.s.t.Fatalf("%s: has no successor", r.s.name)
		return
	}
	r.old, r.s.server = r.s.server, o.successor()
}

// overlap waits until old and new have met: from then on for some milliseconds both have the sockets. If they do not meet, the fault would
// be another one, and the run ends.
func (r *run) overlap() {
	r.s.t.Helper()
	for deadline := time.Now().Add(2 * time.Second); !strings.Contains(r.old.Output(), "handover begins"); r.s.pause(time.Millisecond) {
		if time.Now().After(deadline) {
			r.s.t.Fatalf("%s: the handover did not begin:\n%s\n%s", r.s.name, tail(r.old.Output()), tail(r.s.server.Output()))
		}
	}
}

// terminateOld ends what has a successor, where that has not ended by itself.
func (r *run) terminateOld() {
	if r.old != nil {
		_ = r.old.Terminate(15 * time.Second)
		r.old = nil
	}
}

// servfail measures how long clients waited for names that no program can answer, while kube-dns was dead.
func (r *run) servfail(dead time.Duration) {
	b := r.books["unknown"]
	// The last ones of that time may be answered by a kube-dns that is back.
	from, to := r.lead+100*time.Millisecond, r.lead+dead-2*time.Second
	r.Refusal = b.Slowest(from, to)
	if lost := b.Between(from, to).Lost; lost > 0 {
		r.Refusal = b.Stream.Patience // no answer at all
	}
}

// slowdown is hits' p99 while kube-dns was slow, to the one before. What reached kube-dns was no hit: a full cache
// has let go of some names, and does for each new one.
func (r *run) slowdown(slow time.Duration) {
	for _, b := range r.books {
		if b.Stream.Label == fillLabel && r.s.server != nil { // without a cache all reach it
			b.Skip(func(name string) bool { _, missed := r.s.misses.Load(name); return missed })
		}
	}
	r.sum()
	b := r.books["udp"]
	quiet, busy := b.Between(0, r.lead).P99, b.Between(r.lead, r.lead+slow).P99
	if quiet > 0 {
		r.Slower = float64(busy) / float64(quiet)
	}
}

// flood has the other pod query names that do not exist.
func (r *run) flood() {
	s := r.s
	g := s.launch(s.noisy, load.Plan{Duration: floodTime, Streams: []load.Stream{
		s.stream(load.Stream{Name: "flood", Way: load.Flood, Label: "x", Zone: hotZone, Rate: floodRate, Sockets: 8}),
	}})
	b := g.wait()["flood"]
	r.Flooded = [2]int{b.Sent, b.Answered}
}

var errMissing = errors.New("run it by `make faults`, in the repository's folder")
