package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestMain(m *testing.M) {
	// The load generator is this program, so here it is the test binary.
	if len(os.Args) == 2 && os.Args[1] == generator.Verb {
		if err := generator.Main(os.Stdin, os.Stdout); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Every run of the generator would wait a second at its end, as the race detector does by default.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// spread are ten rounds around a value.
func spread(v float64) []float64 {
	out := make([]float64, 10)
	for i := range out {
		out[i] = v * (1 + float64(i-5)/100)
	}
	return out
}

func TestReport(t *testing.T) {
	var r report
	r.compare("P", "good", "that", "ms", spread(1), spread(2), 1)
	r.compare("P", "bad", "that", "ms", spread(3), spread(2), 1.2)
	r.compare("P", "few", "that", "ms", spread(1)[:3], spread(2)[:3], 1)
	r.compare("P", "told", "that", "ms", spread(3), spread(2), 0)
	r.value("Q", "size", "MB", []float64{4}, 6)
	if got := r.exceeded(); len(got) != 2 || !strings.Contains(got[0], "bad") || !strings.Contains(got[1], "few") {
		t.Errorf("exceeded: %q", got)
	}
	var out bytes.Buffer
	r.markdown(&out)
	for _, want := range []string{"| good | 0.99 ms | that | 1.99 ms | 0.50 [0.50, 0.50] | 1 | holds |", "1.50 [1.50, 1.50] | 1.2 | EXCEEDED |", "| size | 4.00 MB |  |  |  | 6.00 MB | holds |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	dir := t.TempDir()
	testutil.Must(t, r.save(dir))
	back, err := load(filepath.Join(dir, "bench.json"))
	if err != nil || len(back.Rows) != 5 || len(back.Rows[0].OursRounds) != 10 {
		t.Errorf("%v, %+v", err, back)
	}
}

// sampled are the servers of a sample.
var sampled = []string{ours, plain, stock, "unbound", inKernel}

// sample is a report with every figure of five servers: CoreDNS's is twice ours.
func sample() *report {
	r := &report{
		Taken: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: "2 CPUs (amd64), Linux 6.18", Noise: noise{Others: 0.01, OthersTo: 0.02, LagP99: 80 * time.Microsecond},
		Servers: []version{{ours, ""}, {plain, ""}, {stock, "1.15"}, {"unbound", "1.17"}}, Questions: []questions{{ours, 500_000, 0, 0}, {plain, 600_000, 0, 0}, {stock, 400_000, 3, 1}, {"unbound", 900_000, 0, 0}},
	}
	for _, name := range workload.Names {
		for _, m := range measures {
			for _, f := range m.figures {
				for i, s := range sampled {
					for _, v := range spread([]float64{10, 8, 20, 5, 1}[i]) {
						r.add(cellKey{name, m.key, f}, s, v)
					}
				}
			}
		}
	}
	for _, k := range []cellKey{{memoryLoad, "start", "RSS"}, {memoryLoad, "full", "RSS"}, {idleLoad, "idle", "cpu"}, {dnsperfLoad, "full", "qps"}} {
		for i, s := range sampled {
			for _, v := range spread([]float64{30, 30, 60, 0, 31}[i]) {
				r.add(k, s, v)
			}
		}
	}
	for _, name := range kernelShares {
		for _, v := range spread(96) {
			r.add(cellKey{name, "full", "kernel"}, inKernel, v)
		}
	}
	for _, d := range distributions {
		for i, s := range sampled {
			var times generator.Histogram
			for n := range 1000 * (i + 1) {
				times.Note(time.Duration(i+1) * 10 * time.Microsecond * time.Duration(1+n*n/100_000))
			}
			r.heard(cellKey{"W1", d.measure, ""}, s, &times)
			r.heard(cellKey{"W2", d.measure, ""}, s, &times)
		}
	}
	r.heard(cellKey{"W1", "full", ""}, ours, &generator.Histogram{})
	r.drawn()
	r.heardOf = nil
	r.value(kernelPart, "1 answer, 1 pod", "us", spread(0.6), kernelTime)
	r.compare(kernelPart, "4000 answers", "1 answer", "us", spread(0.9), spread(0.6), kernelGrowthLimit)
	r.compare(pluginPart, "ADD", "portmap, nftables, one port", "ms", spread(1), spread(9), 1)
	r.value(sizePart, "plugin binary", "MB", []float64{5.34}, 6)
	return r
}

func TestRender(t *testing.T) {
	r := sample()
	var out bytes.Buffer
	r.markdown(&out)
	golden.Check(t, "bench.md", out.String())
	golden.Check(t, "page.md", r.page())
	golden.Check(t, "bench.svg", r.svg())
	golden.Check(t, "latency.svg", r.curves())
	for _, picture := range []string{r.svg(), r.curves()} {
		var any struct {
			XMLName xml.Name
		}
		if err := xml.Unmarshal([]byte(picture), &any); err != nil || any.XMLName.Local != "svg" {
			t.Errorf("the picture is no SVG: %v, %v", any.XMLName, err)
		}
	}
	data, err := r.encode()
	testutil.Must(t, err)
	var back report
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(&back, r) {
		t.Errorf("read back: %v", err)
	}
	if lines := bytes.Count(data, []byte("\n")); lines < len(r.Cells) || lines > len(r.Cells)+60+len(r.Latencies) {
		t.Errorf("%d cells in %d lines", len(r.Cells), lines)
	}
}

// A busy machine is named as such wherever figures are shown.
func TestBusy(t *testing.T) {
	r := sample()
	for _, n := range []noise{{Others: 0.3}, {Others: 0.01, Unquiet: 2}} {
		r.Noise = n
		var out bytes.Buffer
		r.markdown(&out)
		for what, text := range map[string]string{"tables": out.String(), "page": r.page(), "picture": r.svg()} {
			if !strings.Contains(text, "Taken on a busy machine") {
				t.Errorf("%s: not marked, of %+v", what, n)
			}
		}
	}
	var n noise
	for i := range 100 {
		n.heard(time.Second, time.Duration(i)*10*time.Millisecond, 20*time.Millisecond)
	}
	n.lag.Note(time.Millisecond)
	n.sumUp()
	if n.Others != 0.5 || n.OthersTo != 0.9 || n.Steal != 0.02 || n.LagP99 < time.Millisecond || !n.busy() {
		t.Errorf("%+v", n)
	}
}

// The check finds what became worse than most servers, and nothing else.
func TestWorse(t *testing.T) {
	change := func(k cellKey, server string, by float64) *report {
		r := sample()
		for i, c := range r.Cells {
			if c.cellKey == k && c.Server == server {
				for j := range c.Rounds {
					r.Cells[i].Rounds[j] *= by
				}
			}
		}
		return r
	}
	cpu, hit := cellKey{"W1", "full", "server"}, cellKey{"W2", "1k", "hit"}
	for name, c := range map[string]struct {
		r    *report
		want string
	}{
		"the same":             {sample(), ""},
		"dearer":               {change(cpu, ours, 1.2), "W1, full, server: worse beside 2 of 2"},
		"a little dearer":      {change(cpu, ours, 1.05), ""},
		"cheaper":              {change(cpu, ours, 0.5), ""},
		"one other is cheaper": {change(cpu, stock, 0.5), ""},
		"fewer hits":           {change(hit, ours, 0.8), "W2, 1k, hit"},
		"more hits":            {change(hit, ours, 1.3), ""},
		"not judged":           {change(cellKey{"W1", "full", "qps"}, ours, 0.1), ""},
	} {
		got := strings.Join(c.r.worse(sample()), "\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	few := sample()
	for i := range few.Cells {
		few.Cells[i].Rounds = few.Cells[i].Rounds[:paired.Least-1]
	}
	if got := few.worse(change(cpu, ours, 0.1)); len(got) > 0 {
		t.Errorf("of too few rounds: %q", got)
	}
}

// The page's drawn part is exchanged and the rest left alone; a page without a place for it is refused.
func TestDrawInto(t *testing.T) {
	r := sample()
	once, err := r.drawInto("# P\n\n" + pageBegin + "what was\n" + pageEnd + "\n\nrest\n")
	if err != nil || strings.Contains(once, "what was") || !strings.HasPrefix(once, "# P\n\n") || !strings.HasSuffix(once, pageEnd+"\n\nrest\n") {
		t.Errorf("%v: %s", err, once)
	}
	if twice, err := r.drawInto(once); err != nil || twice != once {
		t.Errorf("a second time: %v", err)
	}
	if _, err := r.drawInto("# P\n"); err == nil {
		t.Error("a page without a place passes")
	}
}

// What is drawn in the documents is the committed result.
func TestCommitted(t *testing.T) {
	r, err := load(filepath.Join("..", "..", committedResult))
	testutil.Must(t, err)
	text := testutil.ReadFile(t, filepath.Join("..", "..", page))
	if want, err := r.drawInto(text); err != nil || want != text {
		t.Errorf("%s is not drawn from %s: run `make bench-keep`, or draw it with -keep: %v", page, committedResult, err)
	}
	said := map[string]bool{}
	for _, row := range r.toStock() {
		if said[row[0]] {
			t.Errorf("two rows are of %q", row[0])
		}
		said[row[0]] = true
	}
	for path, want := range map[string]string{pagePicture: r.svg(), pageCurves: r.curves()} {
		if path == pageCurves && len(r.Latencies) == 0 {
			continue // a result from before they were kept
		}
		if picture, err := os.ReadFile(filepath.Join("..", "..", path)); err != nil || string(picture) != want {
			t.Errorf("%s is not drawn from %s: %v", path, committedResult, err)
		}
	}
}

func TestTurned(t *testing.T) {
	first := map[string]int{}
	for round := range 6 {
		order := turned([]string{"a", "b", "c"}, round)
		if len(order) != 3 || order[0] == order[1] || order[1] == order[2] || order[0] == order[2] {
			t.Fatalf("round %d: %v", round, order)
		}
		first[order[0]]++
	}
	if first["a"] != 2 || first["b"] != 2 || first["c"] != 2 {
		t.Errorf("first: %v", first)
	}
}

func TestDnsperf(t *testing.T) {
	const text = `Statistics:

  Queries sent:         42000
  Queries completed:    41990 (99.98%)
  Queries lost:         10 (0.02%)
  Queries interrupted:  0 (0.00%)

  Response codes:       NOERROR 41990 (100.00%)
  Run time (s):         1.000456
  Queries per second:   41970.861527

  Average Latency (s):  0.001450 (min 0.000050, max 0.005000)
`
	if p, err := parseDnsperf(text); err != nil || p != (perf{41990, 10, 41970.861527, 0.00145}) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", strings.ReplaceAll(text, "Queries lost", "x"), strings.ReplaceAll(text, "41990", "0")} {
		if _, err := parseDnsperf(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
	w, err := workload.New("W1", seed, true)
	testutil.Must(t, err)
	if lines := strings.Split(dnsperfInput(w), "\n"); len(lines) != len(w.Order)+1 || !strings.HasSuffix(lines[0], ".bench.svc.cluster.local A") || !strings.HasSuffix(lines[1], " AAAA") {
		t.Errorf("%q", lines[:2])
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.5: "0.50", 12.34: "12.3", 999: "999", 1234: "1.2 ms", 12345: "12 ms", math.NaN(): ""} {
		testutil.Equal(t, fmt.Sprint(v), want, value(v, figureTexts["p50"]))
	}
	for v, want := range map[float64]string{1: "1", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		testutil.Equal(t, fmt.Sprint(v), want, thousands(v))
	}
	if round(123456) != 123500 || round(0.0012345) != 0.001235 || round(0) != 0 {
		t.Error("four digits")
	}
}

func TestOptions(t *testing.T) {
	good := bench{rounds: 1, parts: allParts, with: allServers(), workloads: workload.Names}
	if err := good.options(); err != nil {
		testutil.Skip(t, err.Error())
	}
	for name, spoil := range map[string]func(*bench){
		"parts": func(b *bench) { b.parts = []string{"queries"} }, "with": func(b *bench) { b.with = []string{"bind"} },
		"workloads": func(b *bench) { b.workloads = []string{"W0"} }, "rounds": func(b *bench) { b.rounds = 0 },
	} {
		b := good
		spoil(&b)
		testutil.WantError(t, b.options(), name)
	}
}

// A node without a cache is sent hits and misses alone, and has no figure of a server.
func TestBare(t *testing.T) {
	for name, want := range map[string]bool{"W1": true, workload.Miss: true, "W8": false} {
		if got := sends(name, bare); got != want || !sends(name, stock) {
			t.Errorf("%s: %v", name, got)
		}
	}
	cached, none := &stand{name: stock}, &stand{name: bare}
	if got := caches([]*stand{none, cached}); len(got) != 1 || got[0] != cached {
		t.Errorf("%d have a cache", len(got))
	}
	b := &bench{node: 1}
	r := outcome{Result: &generator.Result{Asked: 10, Answered: 10, Took: time.Second, Ran: []time.Duration{time.Millisecond}}}
	for _, s := range []*stand{cached, none} {
		b.take("W1", measures[0], s, r)
	}
	server, node := cellKey{"W1", measures[0].key, "server"}, cellKey{"W1", measures[0].key, "node"}
	if len(b.report.rounds(server, stock)) != 1 || len(b.report.rounds(server, bare)) != 0 || len(b.report.rounds(node, bare)) != 1 {
		t.Errorf("%+v", b.Cells)
	}
}
