package evidence

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

var evidenceSeed = flag.Uint64("evidence.seed", 1, "seed of TestEvidence's cuts; 0 draws one")

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// kernel stands in for the switch: clients send queries, and those of blocked clients do not arrive.
type kernel struct {
	mu           sync.Mutex // guards the fields below
	unheard      map[steer.Protocol]int64
	asked, heard map[steer.Client]time.Time
	suspects     map[steer.Client]time.Time // until when the switch bypasses them
	steps        []int                      // arguments of the calls of Hold
	reads        int                        // calls of Notes
	blocked      bool                       // the host's filters drop the pod's queries
	unknown      bool                       // no pod has the client's address
	trials       int                        // calls of TryClient for a known pod
	err          error
}

func newKernel() *kernel {
	return &kernel{unheard: map[steer.Protocol]int64{}, asked: map[steer.Client]time.Time{}, heard: map[steer.Client]time.Time{}, suspects: map[steer.Client]time.Time{}}
}

func (k *kernel) ask(c steer.Client, blocked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	until, suspect := k.suspects[c]
	switch now := time.Now(); {
	case suspect && now.Before(until): // kube-dns answers
	case blocked:
		if suspect {
			k.suspects[c] = now.Add(steer.Hold(0))
		}
		k.asked[c] = now
		k.unheard[c.Protocol]++
	default:
		delete(k.suspects, c)
		k.asked[c], k.heard[c] = now, now
	}
}

func (k *kernel) Unheard() (map[steer.Protocol]int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.unheard), k.err
}

func (k *kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

func (k *kernel) Notes() (steer.Notes, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	ages := func(m map[steer.Client]time.Time) map[steer.Client]time.Duration {
		out := map[steer.Client]time.Duration{}
		for c, at := range m {
			out[c] = time.Since(at)
		}
		return out
	}
	return steer.Notes{Delivered: ages(k.asked), Arrived: ages(k.heard), Slack: 4 * time.Millisecond}, k.err
}

func (k *kernel) Suspects() ([]steer.Suspect, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []steer.Suspect
	for c := range k.suspects {
		out = append(out, steer.Suspect{Client: c})
	}
	return out, k.err
}

func (k *kernel) PodOf(a netip.Addr) string {
	if k.unknown {
		return ""
	}
	return map[netip.Addr]string{pod.Source: "default/web"}[a]
}

// TryClient ends the client's bypass in the switch and sends a query from its pod.
func (k *kernel) TryClient(_ context.Context, c steer.Client) (known bool, err error) {
	k.mu.Lock()
	if k.unknown {
		k.mu.Unlock()
		return false, nil
	}
	k.trials++
	k.suspects[c] = time.Now()
	blocked := k.blocked
	k.mu.Unlock()
	k.ask(c, blocked)
	return true, nil
}

func (k *kernel) Hold(c steer.Client, step int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	k.steps = append(k.steps, step)
	k.suspects[c] = time.Now().Add(steer.Hold(step))
	return nil
}

// held is a node that has held its leases since a given time and renewed them at this moment.
type held struct{ since time.Time }

func (held) Pace() (every, least time.Duration) { return 600 * time.Millisecond, gap }
func (h held) LeaseOf(steer.Client) (Lease, bool) {
	return Lease{Since: h.since, Renewed: time.Now()}, true
}
func logTo(b *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
func run(k *kernel, log *slog.Logger) (e *Evidence, stop func()) {
	e = New(log, k, k, k)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, held{time.Now()})
	}()
	return e, func() { cancel(); <-done }
}

// queries lets two clients send a query once a second for a time: the blocked one and another.
func queries(k *kernel, seconds int, blocked bool) {
	k.mu.Lock()
	k.blocked = blocked
	k.mu.Unlock()
	for range seconds {
		k.ask(pod, blocked)
		k.ask(other, false)
		<-time.After(time.Second) // of the test's own clock
	}
	synctest.Wait()
}

func TestEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, logged := newKernel(), new(bytes.Buffer)
		e, stop := run(k, logTo(logged))
		queries(k, 60, false)
		testutil.Equal(t, "reads of the notes while everybody was heard", 0, k.reads)
		begun := time.Now()
		queries(k, 2, true)
		if !slices.Equal(k.steps, []int{steer.HoldSteps - 2}) || len(k.suspects) != 1 {
			t.Fatalf("after two questions: holds %v, suspects %v", k.steps, k.suspects)
		}
		list := e.Bypassed()
		if len(list) != 1 || list[0].Pod != "default/web" || list[0].Source != pod.Source || list[0].Protocol != "udp" ||
			list[0].Since.Before(begun) || list[0].NextTrial.Sub(list[0].Since) != podstate.Soon {
			t.Errorf("status: %+v", list)
		}
		testutil.Equal(t, "gauge", 1, gauges(t, e)["ipv4 udp"])

		lost := k.unheard[steer.UDP]
		queries(k, 3600, true)
		if lost = k.unheard[steer.UDP] - lost; int(lost) != k.trials || k.trials < 100 || k.trials > 120 {
			t.Errorf("an hour of a lasting policy: %d queries are lost, %d trials", lost, k.trials)
		}
		if got := strings.Count(logged.String(), "level=WARN"); got != 1 || !strings.Contains(logged.String(), "pod=default/web") {
			t.Errorf("logged %d times:\n%s", got, logged)
		}
		testutil.Equal(t, "suspicion of the other client", time.Time{}, k.suspects[other])

		queries(k, int(podstate.Rarely/time.Second)+2, false)
		if len(e.Bypassed()) != 0 || !strings.Contains(logged.String(), "bypass ended") {
			t.Errorf("did not come back: %+v\n%s", e.Bypassed(), logged)
		}
		testutil.Equal(t, "gauge", 0, gauges(t, e)["ipv4 udp"])
		seed := *evidenceSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("repeat with: -evidence.seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 100 { // cuts of up to ten minutes: the pod's own queries need not be its trials, and it is back within 15 s
			queries(k, 2+random.IntN(590), true)
			queries(k, 15, false)
			if list := e.Bypassed(); len(list) > 0 {
				t.Fatalf("15 s after the path works again: %+v", list)
			}
		}
		stop()
	})
}

// A successor finds the suspects of the agent before it, and logs nothing about them until they are served again.
func TestEvidenceOfAnEarlierAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, logged := newKernel(), new(bytes.Buffer)
		k.suspects[pod] = time.Now().Add(time.Minute)
		e, stop := run(k, logTo(logged))
		queries(k, 8, true)
		if list := e.Bypassed(); len(list) != 1 || list[0].Pod != "default/web" || len(k.steps) != 0 || logged.Len() > 0 {
			t.Errorf("%+v, holds %v, log %s", list, k.steps, logged)
		}
		queries(k, 5, true)
		if !slices.Equal(k.steps, []int{steer.HoldSteps - 2}) || k.trials != 1 {
			t.Errorf("its trial failed: holds %v", k.steps)
		}
		stop()
	})
}

// TestEvidenceOverAPause: an agent that was stopped or replaced for a minute tries the pod's path before one of the pod's own queries is
// taken for the trial.
func TestEvidenceOverAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		_, stop := run(k, slog.New(slog.DiscardHandler))
		queries(k, 60, true)
		stop()
		lost, trials := k.unheard[steer.UDP], k.trials
		<-time.After(time.Minute) // without a lease, kube-dns answers
		_, stop = run(k, slog.New(slog.DiscardHandler))
		queries(k, 60, true)
		if lost = k.unheard[steer.UDP] - lost; int(lost) != k.trials-trials {
			t.Errorf("%d queries are dropped, %d of them trials", lost, k.trials-trials)
		}
		stop()
	})
}

// If no netns is known to try a client's path from, its own queries are its trials, ever more rarely.
func TestEvidenceOfAnUnknownPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel()
		k.unknown = true
		e, stop := run(k, slog.New(slog.DiscardHandler))
		queries(k, 3600, true)
		if lost := k.unheard[steer.UDP]; lost < 4 || lost > 10 {
			t.Errorf("an hour of a lasting policy costs %d queries", lost)
		}
		testutil.Equal(t, "holds", []int{0, 1, 2, 3}, slices.Compact(slices.Clone(k.steps)))
		queries(k, int(steer.Hold(steer.HoldSteps-1)/time.Second)+2, false)
		testutil.Equal(t, fmt.Sprintf("still bypassed: %+v", e.Bypassed()), 0, len(e.Bypassed()))
		stop()
	})
}

// A reading or bypass that fails is logged once, and repeated until it works.
func TestEvidenceWithoutASwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, logged := newKernel(), new(bytes.Buffer)
		e, stop := run(k, logTo(logged))
		queries(k, 2, false)
		k.fail(errors.New("no switch here"))
		queries(k, 10, true)
		if got := strings.Count(logged.String(), "no switch here"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, logged)
		}
		k.fail(nil)
		queries(k, 3, true)
		testutil.Equal(t, fmt.Sprintf("not held afterwards: %+v", e.Bypassed()), 1, len(e.Bypassed()))
		stop()
	})
}

// gauges scrapes the bypassed clients, by family and protocol, and checks that the scrape is well formed.
func gauges(t *testing.T, e *Evidence) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(e.Collectors()...)
	families, err := registry.Gather()
	testutil.Must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "neardns_bypassed_clients" {
			for _, m := range f.GetMetric() {
				out[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

func TestCollector(t *testing.T) {
	e := New(slog.New(slog.DiscardHandler), newKernel(), newKernel(), newKernel())
	e.judge.bypassed = map[steer.Client]bypass{pod: {}, other: {}}
	want := map[string]float64{"ipv4 udp": 1, "ipv4 tcp": 0, "ipv6 udp": 0, "ipv6 tcp": 1}
	testutil.Equal(t, "gauges", want, gauges(t, e))
}
