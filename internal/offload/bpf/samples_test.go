package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

var sampleSeed = flag.Uint64("sample.seed", 1, "seed of TestSampleModel")

// The times of hits.bpf.c.
const (
	sampleDue    = 4 * time.Second
	sampleGood   = 8 * time.Second
	sampleStands = 30 * time.Second
	sampleWait   = time.Second
	agentStale   = 2500 * time.Millisecond
)

// verdict is the program's decision about a query that the map answers.
type verdict int

const (
	hit          verdict = iota + 1
	hitAndSample         // answered, and its clone goes on
	goesOn               // as it came
	goesOnSample         // the same, and its answer is awaited
)

// evidence is how long ago a pod's last sample was answered.
type evidence int

const (
	never evidence = iota
	fresh
	due
	old
	gone
	evidences
)

// sampleOut is what is known of a sample that was not answered.
type sampleOut int

const (
	noSample  sampleOut = iota // none went out within sampleWait, and the last one, if any, was answered
	awaited                    // one went out within sampleWait, answered or not
	lost                       // one went out earlier, and was not answered
	thisQuery                  // the query itself, whose clone comes back
	sampleOuts
)

// verdicts is the state machine: by evidence, by sample, and by whether the agent runs.
var verdicts = [evidences][sampleOuts][2]verdict{
	never: noHits,
	fresh: {noSample: {hit, hit}, awaited: {hit, hit}, lost: {hit, hit}, thisQuery: {goesOn, goesOn}},
	due:   {noSample: {hitAndSample, hitAndSample}, awaited: {hit, hit}, lost: {hitAndSample, hitAndSample}, thisQuery: {goesOn, goesOn}},
	old:   {noSample: {hitAndSample, goesOnSample}, awaited: {hit, goesOn}, lost: {hitAndSample, goesOnSample}, thisQuery: {goesOn, goesOn}},
	gone:  noHits,
}

var noHits = [sampleOuts][2]verdict{
	noSample: {goesOnSample, goesOnSample}, awaited: {goesOn, goesOn}, lost: {goesOnSample, goesOnSample}, thisQuery: {goesOn, goesOn},
}

// sampling is the model of a link's slot, with times of the model's own clock. Zero times never were.
type sampling struct {
	now, answered, sampled, beat time.Duration
	sample                       uint32 // port and ID; 0: none
	cloned                       bool
}

func (m *sampling) evidence() evidence {
	ages := [...]time.Duration{fresh: sampleDue, due: sampleGood, old: sampleStands}
	if m.answered == 0 {
		return never
	}
	for e := fresh; e < gone; e++ {
		if m.now-m.answered < ages[e] {
			return e
		}
	}
	return gone
}

func (m *sampling) out(query uint32) sampleOut {
	switch {
	case m.sample != 0 && m.sample == query:
		return thisQuery
	case m.sampled != 0 && m.now-m.sampled < sampleWait:
		return awaited
	case m.sample != 0:
		return lost
	default:
		return noSample
	}
}

func (m *sampling) agentRuns() int {
	if m.now-m.beat < agentStale {
		return 1
	}
	return 0
}

// word is the sample as the map has it: its kind from bit 32 on.
func (m *sampling) word() uint64 {
	if m.sample == 0 {
		return 0
	}
	return uint64(m.sample) | map[bool]uint64{false: 1, true: 2}[m.cloned]<<32
}

// query is one that the map answers.
func (m *sampling) query(query uint32) verdict {
	v := verdicts[m.evidence()][m.out(query)][m.agentRuns()]
	if v == hitAndSample || v == goesOnSample {
		m.sample, m.sampled, m.cloned = query, m.now, v == hitAndSample
	}
	return v
}

// answer is one that goes to the pod. hidden: the pod has it already.
func (m *sampling) answer(to uint32, rcode int) (hidden bool) {
	if m.sample == 0 || m.sample != to {
		return false
	}
	if rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError {
		m.answered, m.sample = m.now, 0
	}
	return m.cloned
}

// instants returns the model at the times within the next d between which its decisions may differ: now, and each bound that it comes to.
func (m *sampling) instants(d time.Duration) (out []sampling) {
	passes := []time.Duration{0}
	for _, bound := range []time.Duration{
		m.answered + sampleDue, m.answered + sampleGood, m.answered + sampleStands, m.sampled + sampleWait, m.beat + agentStale,
	} {
		if after := bound - m.now; 0 < after && after <= d {
			passes = append(passes, after)
		}
	}
	slices.Sort(passes)
	for _, p := range passes {
		at := *m
		at.now += p
		out = append(out, at)
	}
	return out
}

// sampleRig runs the program at a real link.
type sampleRig struct {
	t     *testing.T
	l     *Level
	node  *testutil.Node
	index int
	model sampling
}

func newSampleRig(t *testing.T) *sampleRig {
	t.Helper()
	l, node, pod := onePod(t)
	put(t, l, answerOf(t, "hit.example.", dns.TypeA, nil, "hit.example. 30 IN A 192.0.2.1"))
	return &sampleRig{t: t, l: l, node: node, index: pod.HostLink().Attrs().Index, model: sampling{now: time.Hour}}
}

// stamp is a time of the model by the kernel's clock.
func (r *sampleRig) stamp(at, now time.Duration) uint64 {
	if at == 0 {
		return 0
	}
	return uint64(now - (r.model.now - at))
}

// write puts the model's state into the maps.
func (r *sampleRig) write(now time.Duration) objectLink {
	r.t.Helper()
	m := &r.model
	s := objectLink{Answered: r.stamp(m.answered, now), Sampled: r.stamp(m.sampled, now), Sample: m.word()}
	testutil.Must(r.t, r.l.objects.Links.Put(uint32(r.index), &s))
	testutil.Must(r.t, r.l.objects.Heartbeats.Put(uint32(0), r.stamp(m.beat, now)))
	return s
}

// ran is what came of a run of a program.
type ran struct {
	action uint32
	frame  []byte
	link   objectLink
}

// step runs a program on a frame in the model's state, then the model, and compares what came of both. The program decides at some time
// between begun and ended, so what the model comes to at any of these times is right, also if other programs held the run up.
func (r *sampleRig) step(p *ebpf.Program, frame []byte, model func(*sampling, *ran) error) {
	r.t.Helper()
	var out ran
	var err error
	begun := Now()
	before := r.write(begun)
	r.node.Host.Do(func() {
		o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096), Context: &skb{Ifindex: uint32(r.index)}}
		out.action, err = p.Run(&o)
		out.frame = o.DataOut
	})
	testutil.Must(r.t, err)
	testutil.Must(r.t, r.l.objects.Links.Lookup(uint32(r.index), &out.link))
	ended := Now()
	var faults []error
	for _, m := range r.model.instants(ended - begun) {
		was := m
		err := model(&m, &out)
		same := func(is, before uint64, changed bool) bool {
			return !changed && is == before || changed && uint64(begun) <= is && is <= uint64(ended)
		}
		if out.link.Sample != m.word() || !same(out.link.Answered, before.Answered, m.answered != was.answered) ||
			!same(out.link.Sampled, before.Sampled, m.sampled != was.sampled) {
			err = errors.Join(err, fmt.Errorf("the program comes to %+v (from %d to %d), the model to %+v", out.link, begun, ended, m))
		}
		if err == nil {
			r.model = m
			return
		}
		faults = append(faults, fmt.Errorf("from %+v: %w", was, err))
	}
	r.t.Fatal(errors.Join(faults...))
}

// query runs a query of the pod, and compares the verdict.
func (r *sampleRig) query(id uint16, v6 bool) (v verdict) {
	r.t.Helper()
	frame := packet(v6, partial, ask(r.t, "hit.example.", dns.TypeA, func(m *dns.Msg) { m.Id = id }))
	r.step(r.l.objects.NeardnsHits, frame, func(m *sampling, out *ran) error {
		v = m.query(sampleOf(id))
		switch want := map[bool]uint32{false: unspec, true: redirect}[v == hit || v == hitAndSample]; {
		case out.action != want:
			return fmt.Errorf("action %d, want %d", int32(out.action), int32(want))
		case want == unspec && !bytes.Equal(out.frame, frame):
			return errors.New("a sample was changed")
		case out.link.Hits != map[bool]uint64{v == hit: 1}[true]:
			return fmt.Errorf("counted as %d hits: verdict %d", out.link.Hits, v)
		}
		return nil
	})
	return v
}

// sampleOf is a sample's word: packet's port and the ID, as the program reads them.
func sampleOf(id uint16) uint32 {
	const port = 40000
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, port), id)
	return binary.LittleEndian.Uint32(b)
}

// answer runs an answer to the pod.
func (r *sampleRig) answer(id uint16, rcode int, v6 bool) {
	r.t.Helper()
	frame := packet(v6, partial, ask(r.t, "hit.example.", dns.TypeA, func(m *dns.Msg) { m.Id, m.Response, m.Rcode = id, true, rcode }))
	udp := len(frame) - len(payloadOf(frame)) - 8
	copy(frame[udp:], []byte{0, 53, 40000 >> 8, 40000 & 0xff})
	r.step(r.l.objects.NeardnsAnswers, frame, func(m *sampling, out *ran) error {
		hidden, want := m.answer(sampleOf(id), rcode), bytes.Clone(frame)
		if hidden {
			clear(want[:6])
		}
		return testutil.ErrorIf(out.action != unspec || !bytes.Equal(out.frame, want),
			"action %d and %x, want %x (hidden %t)", int32(out.action), out.frame, want, hidden)
	})
}

// TestSampleTable: in each state of the table, the program comes to the table's verdict and the model's next state.
func TestSampleTable(t *testing.T) {
	r := newSampleRig(t)
	const id = 0xbeef
	seen := map[[3]int]bool{}
	for _, answered := range []time.Duration{0, 1, 6, 20, 40} {
		for _, sampled := range []time.Duration{0, 500 * time.Millisecond, 2 * time.Second} {
			for _, sample := range []uint32{0, 1, sampleOf(id)} {
				for _, beat := range []time.Duration{time.Second, 5 * time.Second} {
					for _, cloned := range []bool{false, true} {
						now := time.Hour
						r.model = sampling{now: now, beat: now - beat, sample: sample, cloned: cloned && sample != 0}
						if answered > 0 {
							r.model.answered = now - answered*time.Second
						}
						if sampled > 0 {
							r.model.sampled = now - sampled
						}
						seen[[3]int{int(r.model.evidence()), int(r.model.out(sampleOf(id))), r.model.agentRuns()}] = true
						state := r.model
						r.query(id, cloned)
						for _, rcode := range []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeRefused, dns.RcodeServerFailure} {
							r.model = state
							r.answer(id, rcode, cloned)
						}
					}
				}
			}
		}
	}
	if want := int(evidences) * int(sampleOuts) * 2; len(seen) != want {
		t.Errorf("%d of the table's %d cells were met", len(seen), want)
	}
}

// sampleWorld is a pod that queries what the map answers, its path, and the agent.
type sampleWorld struct {
	m                 sampling
	path, running     bool
	cut, hung, served time.Duration // since when the path is cut, the agent hangs, and the path and the agent serve
	busy              time.Duration // since when there is a query each second
}

// TestSampleModel walks at random and checks the guarantees: no hit before the pod's path was seen to work, none later than ten seconds
// after it was cut while the agent runs, none later than 30 seconds after the last answer. A pod that sends queries and gets answers has
// hits, and keeps them without a lost query for 20 seconds after its agent hangs.
func TestSampleModel(t *testing.T) {
	by := rand.New(rand.NewPCG(*sampleSeed, 1))
	w := sampleWorld{m: sampling{now: time.Hour}, path: true, running: true, served: time.Hour, busy: time.Hour}
	seen := map[string]int{}
	for range 400_000 {
		if why := w.step(by, seen); why != "" {
			t.Fatalf("%s: %+v", why, w)
		}
	}
	for _, what := range []string{"cut", "hung", "served"} {
		if seen[what] < 100 {
			t.Errorf("the walk met %q %d times: %v", what, seen[what], seen)
		}
	}
}

func (w *sampleWorld) step(by *rand.Rand, seen map[string]int) (why string) {
	m := &w.m
	m.now += 200 * time.Millisecond
	if by.IntN(150) == 0 {
		w.path, w.cut, w.served = !w.path, m.now, m.now
	}
	if by.IntN(150) == 0 {
		w.running, w.hung, w.served = !w.running, m.now, m.now
	}
	if w.running && m.now%time.Second == 0 {
		m.beat = m.now
	}
	if by.IntN(300) == 0 { // no query for a while
		w.busy = m.now + time.Duration(by.IntN(60))*time.Second
	}
	if m.now < w.busy || m.now%time.Second != 0 && by.IntN(2) == 0 {
		return ""
	}
	first := m.answered == 0
	verified := m.answered
	query := by.Uint32() | 1
	v := m.query(query)
	answered := v == hit || v == hitAndSample
	if (v == hitAndSample || v == goesOnSample) && w.path && w.running {
		m.answer(query, dns.RcodeSuccess)
	}
	steady := w.path && w.running && m.now-w.served > 3*time.Second && m.now-w.busy > 3*time.Second
	outage := w.path && !w.running && w.served == w.hung && min(w.hung-w.busy, w.hung-w.cut) > 9*time.Second && m.now-w.hung < 20*time.Second
	switch {
	case answered && first:
		return "a hit before the pod was answered"
	case answered && m.now-verified > sampleStands:
		return "a hit long after the last answer"
	case answered && !w.path && w.running && m.now-w.cut > 10*time.Second && m.now-w.hung > 10*time.Second:
		return "a hit later than ten seconds after a cut"
	case !answered && steady:
		return "a busy pod that is answered has no hit"
	case !answered && outage && verified != 0 && w.hung-verified < 5*time.Second:
		return "a query is lost to an agent that hangs"
	}
	switch {
	case !w.path && w.running && m.now-w.cut > 10*time.Second:
		seen["cut"]++
	case w.path && !w.running && answered:
		seen["hung"]++
	case answered:
		seen["served"]++
	}
	return ""
}
