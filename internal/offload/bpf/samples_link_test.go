package bpf

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// noAnswer stands for a query without an answer.
const noAnswer = "none"

// sampled is a pod with the programs at its link.
type sampled struct {
	*testing.T
	level *Level
	pod   *testutil.Pod
	index int
}

// far is longer than anything takes on a busy machine.
const far = time.Hour

// query returns what answered: "kernel", "user" or noAnswer.
func (s sampled) query(wait time.Duration) string {
	s.Helper()
	a, err := testutil.Ask(s.pod.NetNS, at53(server4), webName, dns.TypeTXT, "udp", testutil.AskOptions{Timeout: wait})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return noAnswer
	}
	testutil.Must(s, err)
	return a.Who
}

func (s sampled) want(when, from string) {
	s.Helper()
	wait := testutil.Attempt
	if from == noAnswer {
		wait = testutil.Silence
	}
	testutil.Equal(s, when, from, s.query(wait))
}

// wantSample sends a query of a pod that is due for a sample, because its last answer is that old; hits end when the answer is as old as
// end. The program's stamp is when it decided. If a busy machine held the query up until hits had ended, it must not be a hit.
func (s sampled) wantSample(when string, age, end time.Duration, running bool) (begun time.Duration) {
	s.Helper()
	begun = Now()
	s.put(begun-age, begun-age, running)
	from := s.query(testutil.Attempt)
	at := s.link().Sampled
	s.stamped(when, at, begun)
	if ended := at >= uint64(begun-age+end); ended == (from == "kernel") { //nolint:gosec // the kernel's clock
		s.Errorf("%s: answered by %s, hits have ended: %t", when, from, ended)
	}
	return begun
}

// stamped fails the test, which goes on, unless a stamp of the program is of the time since begun.
func (s sampled) stamped(when string, at uint64, begun time.Duration) {
	s.Helper()
	if now := Now(); at < uint64(begun) || at > uint64(now) { //nolint:gosec // the kernel's clock
		s.Errorf("%s: the program's stamp is %d, not within %d to %d", when, at, begun, now)
	}
}

// put sets the times of the last answer and sample, and whether the agent runs.
func (s sampled) put(answered, sample time.Duration, running bool) {
	s.Helper()
	at := s.link()
	at.Answered, at.Sampled = uint64(max(answered, 1)), uint64(max(sample, 1)) //nolint:gosec // the kernel's clock
	testutil.Must(s, s.level.objects.Links.Put(uint32(s.index), &at))
	beat := uint64(1)
	if running {
		beat = uint64(Now() + far) //nolint:gosec // the kernel's clock
	}
	testutil.Must(s, s.level.objects.Heartbeats.Put(uint32(0), beat))
}

// age sets the times of the last answer and sample to far ago or far ahead.
func (s sampled) age(answered, sample time.Duration, running bool) {
	s.Helper()
	s.put(Now()+answered, Now()+sample, running)
}

func (s sampled) link() objectLink {
	s.Helper()
	at, _, err := s.level.link(s.index)
	testutil.Must(s, err)
	return at
}

func (s sampled) unanswered(want bool) {
	s.Helper()
	if got, err := s.level.Unanswered(s.index); err != nil || got != want {
		s.Errorf("unanswered: %t %v, want %t", got, err, want)
	}
}

// TestSamples: at a real link, a pod's first query goes on; once its answer has passed, hits are served. Later samples reach the server,
// and the pod's query is still a hit. If the server is cut off, hits end; while the agent does not run, they continue for longer.
func TestSamples(t *testing.T) {
	for name, attach := range map[string]func(*Level, int) error{"tcx": (*Level).tcx, "clsact": (*Level).clsact} {
		t.Run(name, func(t *testing.T) {
			l, node, pod := onePod(t)
			index := pod.HostLink().Attrs().Index
			testutil.Must(t, l.objects.Links.Put(uint32(index), &objectLink{}))
			var err error
			if node.Host.Do(func() { err = attach(l, index) }); errors.Is(err, ebpf.ErrNotSupported) {
				testutil.Skip(t, "this kernel has no tcx")
			} else if err != nil {
				t.Fatal(err)
			}
			s := sampled{t, l, pod, index}
			s.unanswered(false)
			begun := Now()
			testutil.Must(t, l.Beat())
			var beat uint64
			testutil.Must(t, l.objects.Heartbeats.Lookup(uint32(0), &beat))
			s.stamped("heartbeat", beat, begun)
			s.want("the first query", "user")
			s.stamped("its sample", s.link().Sampled, begun)
			s.stamped("its answer", s.link().Answered, begun)
			s.age(far, far, false)
			s.want("the second", "kernel")
			begun = s.wantSample("a sample", sampleDue, sampleGood, true)
			testutil.Eventually(t, func() error {
				late := s.link().Answered < uint64(begun) //nolint:gosec // the kernel's clock
				return testutil.ErrorIf(late, "the sample's answer did not pass the link")
			})
			s.age(-far, -far, true)
			s.unanswered(false)
			begun = Now()
			s.want("after an idle time", "user")
			s.stamped("after an idle time", s.link().Answered, begun)

			node.Host.RunInput("table inet guard {\nchain in {\ntype filter hook input priority 0; udp dport 53 drop\n}\n}\n", "nft", "-f", "-")
			s.age(far, far, true)
			s.want("just cut off", "kernel")
			s.wantSample("a sample of a pod that is cut off", sampleDue, sampleGood, true)
			s.age(-far, -far, true)
			s.want("cut off", noAnswer)
			for _, sample := range []time.Duration{0, far} { // also while the latest sample may still be answered
				s.age(-far, sample, true)
				s.unanswered(true)
			}
			s.wantSample("cut off, without the agent", sampleGood, sampleStands, false)
			s.age(-far, -far, false)
			s.want("long without the agent", noAnswer)
			node.Host.Run("nft", "delete", "table", "inet", "guard")
			s.age(-far, -far, true)
			s.want("no longer cut off", "user")
			s.age(far, far, true)
			s.want("answered again", "kernel")
			s.unanswered(false)
		})
	}
}
