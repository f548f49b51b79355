//go:build timing

package steering

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	// firstLookup is how much longer than without neardns a pod's first lookup may take where no policy interferes, or one did a second
	// before.
	firstLookup = 50 * time.Millisecond
	// steeredWithin is how soon after its ADD a pod is steered, of 95 pods in 100.
	steeredWithin = 300 * time.Millisecond
	// unsteeredWithin is how soon the running pods of a node are on kube-dns after a SIGHUP with steer.mode: none.
	unsteeredWithin = 10 * time.Second
	// fewRounds are tried of a policy that comes after ADD: an answer may take a repetition. manyRounds are tried of the others.
	fewRounds, manyRounds = 3, 30
	// youth is podstate.Youth: until then, a pod is watched closely.
	youth = 10 * time.Second
)

// timedLookup is how long a pod's process waits for a name that exists, by a C library's resolver with its own timeouts.
func (p *pod) timedLookup(library string) time.Duration {
	p.node.t.Helper()
	args := append([]string{"env", "TIMED=1"}, p.lookupCommand(library, "timed", "any", "web.default.svc.cluster.local.")...)
	out, err := p.TryRun("", args...)
	fields := strings.Fields(out)
	if err != nil || len(fields) < 3 || fields[1] == "error" {
		p.node.t.Errorf("%s, %s: %v %q", p.name, library, err, out)
		return 0
	}
	micros, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
	testutil.Must(p.node.t, err)
	return time.Duration(micros) * time.Microsecond
}

// TestTimingFirstLookup measures how long a new pod's first lookup takes without a policy, with one that is in force before the pod, and
// with ones that come 100 ms and 2 s after it, next to a pod that opted out.
//
// State: TestNewPodUnderPolicy, TestNewPodIsSteered. Bound: TestNewPodUnderPolicy (agent/internal/pods/podstate): a lookup that meets the
// policy's coming pays one repetition.
func TestTimingFirstLookup(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.IPv4, proven: true, install: true},
		{families: testutil.IPv4, proxy: testutil.IPTables, proven: true, install: true, backend: string(iptables.NFT)},
	} {
		t.Run(s.String(), func(t *testing.T) {
			n := newNode(t, s)
			n.DNS.Behave(testutil.Behaviour{Handler: answerCorpus})
			n.write("nsswitch.conf", "hosts: dns\n")
			testutil.Must(t, lookups())
			n.startAgent()
			out := n.addPod(optOut)
			out.resolver("timed", "ndots:5")
			out.timedLookup("glibc") // kube-dns knows the name
			for _, library := range []string{"glibc", "musl"} {
				for _, after := range []time.Duration{never, 0, 100 * time.Millisecond, 2 * time.Second} {
					n.measureFirstLookups(out, library, after)
				}
			}
		})
	}
}

// never is no time at which a policy comes.
const never time.Duration = -1

// measureFirstLookups has new pods look a name up, at once and a second later, while a policy comes so long after ADD.
func (n *node) measureFirstLookups(out *pod, library string, after time.Duration) {
	n.t.Helper()
	var without, first, later []time.Duration
	rounds := fewRounds
	if after <= 0 {
		rounds = manyRounds
	}
	for range rounds {
		without = append(without, out.timedLookup(library))
		end := func() {}
		if after == 0 {
			end = n.policy()
		}
		p := n.makePod(true, nil)
		if after > 0 {
			time.Sleep(after)
			end = n.policy()
		}
		p.resolver("timed", "ndots:5")
		var wg sync.WaitGroup
		wg.Go(func() { first = append(first, p.timedLookup(library)) })
		time.Sleep(time.Second)
		later = append(later, p.timedLookup(library))
		wg.Wait()
		end()
		p.del()
	}
	when, limit := after.String()+" after ADD", slices.Max(without)+firstLookup
	firstLimit := limit
	switch after {
	case never:
		when = "none"
	case 0:
		when = "before ADD"
	default:
		firstLimit += map[string]time.Duration{"glibc": 5 * time.Second, "musl": 2500 * time.Millisecond}[library]
	}
	n.t.Logf("%s, %s, policy %s: without neardns %s, first lookup %s, a second later %s", n.setup, library, when, spread(without), spread(first),
		spread(later))
	if slices.Max(first) > firstLimit || slices.Max(later) > limit {
		n.t.Errorf("a lookup takes longer than %s, or %s a second later", firstLimit, limit)
	}
}

// spread prints the median and the longest of some durations.
func spread(all []time.Duration) string {
	sorted := slices.Sorted(slices.Values(all))
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("%.1f ms (longest %.1f of %d)", ms(sorted[len(sorted)/2]), ms(sorted[len(sorted)-1]), len(sorted))
}

// TestTimingNewPodsAreSteered measures the time from a pod's ADD until it is steered, on a node of 110 pods, and then how long steer.mode:
// none takes to bring all of them back to kube-dns.
//
// State: TestNewPodIsSteered, TestSteerMode. Bound: none, no step waits for a clock: a file's event starts each trial, and SIGHUP the way
// back.
func TestTimingNewPodsAreSteered(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, proven: true, install: true},
		{families: testutil.Dual, proxy: testutil.IPTables, proven: true, install: true, backend: string(iptables.NFT)},
	} {
		t.Run(s.String(), func(t *testing.T) {
			n := newNode(t, s)
			n.startAgent()
			for range 90 {
				n.makePod(true, nil)
			}
			n.awaitAll(podfile.Steered) // with iptables, this takes as long as its programs do
			time.Sleep(youth)           // their trials are over
			var took []time.Duration
			for range 20 {
				steered := make(chan time.Duration, 1)
				file := podfile.Path(n.stateDir(), programs.ContainerID(fmt.Sprintf("pod%d", n.pods+1)), "eth0")
				go func() { steered <- untilSteered(file) }()
				n.makePod(true, nil)
				took = append(took, <-steered)
			}
			slices.Sort(took)
			t.Logf("steered after %s (median), %s (95 in 100), %s (the last)", took[10], took[18], took[19])
			if took[18] > steeredWithin {
				t.Errorf("steered after %s", took[18])
			}
			n.steer("{mode: none}")
			begun := time.Now()
			n.awaitAll(podfile.LeftAlone)
			if took := time.Since(begun); took > unsteeredWithin {
				t.Errorf("mode none: pods are still steered after %s", took)
			} else {
				t.Logf("mode none: no pod is steered after %s", took)
			}
		})
	}
}

// awaitAll waits until all pods of the node are in one state.
func (n *node) awaitAll(want podfile.State) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		files, errs := podfile.List(n.stateDir())
		for _, f := range files {
			if len(f.In(want)) < len(f.Decisions) {
				errs = append(errs, fmt.Errorf("%s: %+v, want %s", f.PodName, f.Decisions, want))
			}
		}
		return errors.Join(errs...)
	})
}

// untilSteered is how long a pod file that is not there yet has a pod that is not steered.
func untilSteered(file string) time.Duration {
	var made time.Time
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(time.Millisecond) {
		f, err := podfile.Read(file)
		if err == nil && made.IsZero() {
			made = time.Now()
		}
		if err == nil && len(f.In(podfile.Steered)) == len(f.Decisions) {
			return time.Since(made)
		}
	}
	return patience
}
