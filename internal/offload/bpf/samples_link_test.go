package bpf

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/neardns/neardns/pkg/testutil"
)

// noAnswer is in dig's output if there is no answer.
const noAnswer = "timed out"

// sampled is a pod with the programs at its link.
type sampled struct {
	*testing.T
	level *Level
	pod   *testutil.Pod
	index int
}

func (s sampled) query() string {
	s.Helper()
	return s.pod.Run("sh", "-c", "dig +short +tries=1 +time=1 +nocookie @"+server4.String()+" TXT "+webName+" || true")
}

func (s sampled) want(when, from string) {
	s.Helper()
	if out := s.query(); !strings.Contains(out, from) {
		s.Errorf("%s: %s, want %q", when, out, from)
	}
}

// wantSample wants a hit of a pod that is due for a sample: its last answer is 6 s old, and hits end after 8 s. On a busy machine a query
// may take longer than that; then it shows nothing, and the next one counts. begun is when that one began.
func (s sampled) wantSample(when string) (begun time.Duration) {
	s.Helper()
	for {
		begun = Now()
		s.put(begun-6*time.Second, begun-6*time.Second, true)
		if out := s.query(); Now()-begun < 2*time.Second {
			if !strings.Contains(out, "kernel") {
				s.Errorf("%s: %s, want a hit in the kernel", when, out)
			}
			return begun
		}
	}
}

// age makes the last answer and sample older, and the agent's heartbeat fresh if running is true.
func (s sampled) age(by time.Duration, running bool) {
	s.Helper()
	at := s.link()
	s.put(time.Duration(at.Answered)-by, time.Duration(at.Sampled)-by, running) //nolint:gosec // the kernel's clock
}

func (s sampled) put(answered, sample time.Duration, running bool) {
	s.Helper()
	at := s.link()
	at.Answered, at.Sampled = uint64(answered), uint64(sample) //nolint:gosec // the kernel's clock
	testutil.Must(s, s.level.objects.Links.Put(uint32(s.index), &at))
	if running {
		testutil.Must(s, s.level.Beat())
		return
	}
	testutil.Must(s, s.level.objects.Heartbeats.Put(uint32(0), uint64(1)))
}

func (s sampled) link() objectLink {
	s.Helper()
	at, _, err := s.level.link(s.index)
	testutil.Must(s, err)
	return at
}

func (s sampled) answered() uint64 { return s.link().Answered }

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
			want, age, answered, unanswered := s.want, s.age, s.answered, s.unanswered
			unanswered(false)
			want("the first query", "user")
			want("the second", "kernel")
			begun := s.wantSample("a sample")
			testutil.Eventually(t, func() error {
				if answered() < uint64(begun) { //nolint:gosec // the kernel's clock
					return errors.New("the sample's answer did not pass the link")
				}
				return nil
			})
			age(20*time.Second, true)
			unanswered(false)
			want("after an idle time", "user")
			want("after its answer", "kernel")

			node.Host.RunInput("table inet guard {\nchain in {\ntype filter hook input priority 0; udp dport 53 drop\n}\n}\n", "nft", "-f", "-")
			want("just cut off", "kernel")
			s.wantSample("a sample of a pod that is cut off")
			age(3*time.Second, true)
			want("cut off", noAnswer)
			unanswered(true) // also while the latest sample may still be answered
			age(2*time.Second, true)
			unanswered(true)
			age(0, false)
			want("cut off, without the agent", "kernel")
			age(30*time.Second, false)
			want("long without the agent", noAnswer)
			node.Host.Run("nft", "delete", "table", "inet", "guard")
			age(2*time.Second, true)
			want("no longer cut off", "user")
			want("answered again", "kernel")
			unanswered(false)
		})
	}
}
