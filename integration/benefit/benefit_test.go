package main

import (
	"encoding/xml"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestMain(m *testing.M) {
	// The load generator is this program, so here it is the test binary.
	if called, err := verbs(os.Args); called {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ms(all ...float64) (out []time.Duration) {
	for _, n := range all {
		out = append(out, time.Duration(n*float64(time.Millisecond)))
	}
	return out
}

func sample() report {
	return report{
		Taken: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: "2 CPUs, Linux 6.18", Rounds: 5, Rate: 500, Length: 6 * time.Second, Away: time.Millisecond, Loss: 2,
		Cases: []result{
			{
				Title:   "A and AAAA at once from one socket",
				Without: summed{round: round{Lookups: 3000, Times: ms(1.3, 1.5, 1.6, 2.2, 4, 9.7), Entries: 2987, Lost: 1, Clashed: 412}, Worst: 1, All: 15000},
				With:    summed{round: round{Lookups: 3000, Times: ms(0.08, 0.11, 0.12, 0.2, 0.9, 3.1)}, All: 15000},
			},
			{
				Title:   "the same, 2 % of UDP to kube-dns lost, & more",
				Without: summed{round: round{Lookups: 3000, Missed: 119, Times: ms(1.3, 1.5, 1.7, 5000, 5000, 5000), Entries: 3000}, Worst: 131, All: 15000},
				With:    summed{round: round{Lookups: 3000, Times: ms(0.08, 0.11, 0.12, 0.2, 0.9, 12), Entries: 3}, All: 15000},
			},
		},
	}
}

func TestRender(t *testing.T) {
	r := sample()
	golden.Check(t, "benefit.md", r.markdown())
	golden.Check(t, "benefit.txt", r.plot())
	golden.Check(t, "benefit.svg", r.svg())
	var any struct {
		XMLName xml.Name
	}
	if err := xml.Unmarshal([]byte(r.svg()), &any); err != nil || any.XMLName.Local != "svg" {
		t.Errorf("the picture is no SVG: %v, %v", any.XMLName, err)
	}
}

// A busy machine is reported.
func TestRenderOfABusyMachine(t *testing.T) {
	r := sample()
	r.Cases[1].With.Late = 250 * time.Millisecond
	golden.Check(t, "busy.md", r.markdown())
}

func TestNumbers(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0.00 ms", 83 * time.Microsecond: "0.08 ms", 1340 * time.Microsecond: "1.3 ms", 12 * time.Millisecond: "12 ms", 5 * time.Second: "5.0 s"} {
		testutil.Equal(t, fmt.Sprintf("%v", d), want, duration(d))
	}
	for d, want := range map[time.Duration]float64{0: 0, 10 * time.Microsecond: 0, 10 * time.Millisecond: 0.5, 10 * time.Second: 1, time.Hour: 1} {
		if got := along(d); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%v stands at %v, want %v", d, got, want)
		}
	}
	if got := share(0, 0); got != "0 %" {
		t.Error(got)
	}
}

func TestParseStats(t *testing.T) {
	const text = `cpu=0 found=3 invalid=0 insert=0 insert_failed=7 drop=1 early_drop=0 error=0 search_restart=4 clash_resolve=40 chaintoolong=0
cpu=1 found=0 invalid=0 insert=0 insert_failed=2 drop=1 early_drop=0 error=0 search_restart=0 clash_resolve=2 chaintoolong=0
`
	testutil.Equal(t, "statistics", tracking{Lost: 9, Clashed: 42}, parseStats(text))
}

// A missed lookup is the slowest of all.
func TestJudge(t *testing.T) {
	b := &load.Book{Stream: load.Stream{Rate: 1000}, Outcomes: "ccdlfwc", Took: ms(4, 1, 2, 0, 1, 1, 3)}
	want := round{Lookups: 7, Missed: 3, Times: ms(4, 5000, 5000, 5000, 5000, 5000)}
	testutil.Equal(t, "verdicts", want, judge(b))
	if got := at(nil, 0.5); got != 0 {
		t.Error(got)
	}
}

func TestSumUp(t *testing.T) {
	times := func(n float64) []time.Duration { return ms(n, n, n, n, n, n) }
	got := sumUp([]round{
		{Lookups: 10, Missed: 5, Times: times(3), Entries: 1, Late: time.Second}, {Lookups: 10, Missed: 0, Times: times(1), Entries: 9, Lost: 4},
		{Lookups: 10, Missed: 1, Times: times(2), Entries: 4, Clashed: 3},
	})
	want := summed{round: round{Lookups: 10, Missed: 1, Times: times(2), Entries: 4, Late: time.Second}, Worst: 5, All: 30}
	testutil.Equal(t, "sums", want, got, cmp.AllowUnexported(summed{}))
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]options{
		"rounds": {rounds: 0, length: time.Second, rate: 1, loss: 1}, "length": {rounds: 1, length: time.Hour, rate: 1, loss: 1},
		"rate": {rounds: 1, length: time.Second, rate: 5000, loss: 1}, "loss": {rounds: 1, length: time.Second, rate: 1, loss: 90},
		"away": {rounds: 1, length: time.Second, rate: 1, loss: 1, away: time.Hour},
	} {
		if err := o.check(); err == nil {
			t.Errorf("%s: passes", name)
		}
	}
}

// newStands makes both stands for a test.
func newStands(t *testing.T, o *options) (without, with *stand) {
	t.Helper()
	testutil.RequireRoot(t)
	var err error
	o.root, err = filepath.Abs("../..")
	testutil.Must(t, err)
	if err := o.check(); err != nil {
		testutil.Skip(t, err.Error())
	}
	dir := t.TempDir()
	return newStand(t, o, dir, false), newStand(t, o, dir, true)
}

// TestNothingTracked: with neardns, a query that the agent answers has no conntrack entry, and the second query for a name is a hit, so no
// loss on the way to kube-dns can delay it. Without neardns a query has an entry.
func TestNothingTracked(t *testing.T) {
	without, with := newStands(t, &options{rounds: 1, length: time.Second, rate: 1, loss: 1})
	const name = "ttl-600.name.svc.cluster.local."
	if a, entries := without.tracked(name, 20000); !without.reached(a) || len(entries) == 0 {
		t.Errorf("without neardns: kube-dns answers %s, conntrack entries %q", a.Client, entries)
	}
	port, serials := uint16(20000), []int(nil)
	testutil.Eventually(t, func() error { // kube-dns answers while an agent on a busy machine has lost its lease
		port++ // not that of a query that kube-dns answered, whose entry is still there
		a, entries := with.tracked(name, port)
		if !with.reached(a) {
			serials = append(serials, a.Serial)
			testutil.Equal(t, "conntrack entries of what the agent answers", 0, len(entries))
		}
		return testutil.ErrorIf(len(serials) < 2, "the agent has answered %d queries", len(serials))
	})
	testutil.Equal(t, "kube-dns's answers for the agent", 1, len(slices.Compact(serials)))
}

// reached reports whether kube-dns got the query from the pod itself.
func (s *stand) reached(a *testutil.Answer) bool { return s.node.PodRange(true).Contains(a.Client) }

// tracked sends a query from a port, and returns its answer and its conntrack entries, of the node and of the pod.
func (s *stand) tracked(name string, port uint16) (a *testutil.Answer, entries []string) {
	s.t.Helper()
	a, err := testutil.Ask(s.pod.NetNS, s.clusterDNS(), name, dns.TypeA, "udp",
		testutil.AskOptions{Source: netip.AddrPortFrom(netip.Addr{}, port)})
	s.must(err)
	for _, entry := range slices.Concat(testutil.Conntrack(s.node.Host), testutil.Conntrack(s.pod.NetNS)) {
		if strings.Contains(entry, fmt.Sprintf(":%d > ", port)) {
			entries = append(entries, entry)
		}
	}
	return a, entries
}
