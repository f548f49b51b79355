package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) {
	// The load generator is this program, so here it is the test binary.
	if len(os.Args) == 2 && os.Args[1] == loadVerb {
		if err := generate(os.Stdin, os.Stdout); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestQuestion(t *testing.T) {
	wire := question(nil, 4711, 12, "bench.svc.cluster.local")
	var m dns.Msg
	if err := m.Unpack(wire); err != nil {
		t.Fatal(err)
	}
	if m.Id != 4711 || !m.RecursionDesired || len(m.Question) != 1 || m.Question[0] != (dns.Question{Name: "n0000012.bench.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}) {
		t.Errorf("%v", m)
	}
}

// The generator sends nothing to addresses that may be somebody else's, and never without bounds.
func TestLoadBounds(t *testing.T) {
	good := load{Server: netip.MustParseAddrPort("10.96.0.10:53"), Sockets: 1, Window: 1, Count: 1}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(*load){
		"public address": func(l *load) { l.Server = netip.MustParseAddrPort("192.0.2.1:53") },
		"no address":     func(l *load) { l.Server = netip.AddrPort{} },
		"rate":           func(l *load) { l.Rate = 1_000_000 },
		"duration":       func(l *load) { l.Duration = time.Hour },
		"endless":        func(l *load) { l.Count = 0 },
		"sockets":        func(l *load) { l.Sockets = 1000 },
		"no socket":      func(l *load) { l.Sockets = 0 },
		"window":         func(l *load) { l.Window = 10_000 },
	} {
		l := good
		spoil(&l)
		if err := l.check(); err == nil {
			t.Errorf("%s: %+v passes", name, l)
		}
	}
}

// What is lost, refused or empty never counts as answered, at full speed and paced.
func TestLoadCounts(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "load")
	at := netip.MustParseAddrPort("127.0.0.1:53")
	server := testutil.ServeDNS(t, ns, testutil.DNSConfig{Name: "S", Listen: []netip.AddrPort{at}, Quiet: true})
	s := &stand{t: t, pod: &testutil.Pod{NetNS: ns}}
	run := func(l load) (r result) {
		t.Helper()
		l.Server, l.Zone = at, "bench.test"
		in, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(s.pod.RunInput(string(in), self, loadVerb)), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, l := range []load{
		{Names: 3, Sockets: 2, Window: 4, Count: 100},
		{Unique: 1, Sockets: 2, Window: 4, Count: 100},
		{Names: 3, Sockets: 2, Rate: 1000, Count: 100},
	} {
		server.Forget()
		if r := run(l); r.Answered != 100 || r.Lost+r.Wrong != 0 || server.Questions("udp") != 100 || r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("%+v: %+v, %d questions seen", l, r, server.Questions("udp"))
		}
		server.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
		if r := run(l); r.Answered != 0 || r.Wrong != 100 {
			t.Errorf("SERVFAIL: %+v: %+v", l, r)
		}
		server.Behave(testutil.Behaviour{Drop: true})
		l.Count = 2 * max(l.Window, 1) // one window a socket: each is waited for
		if r := run(l); r.Answered != 0 || r.Lost != l.Count {
			t.Errorf("nothing: %+v: %+v", l, r)
		}
		server.Behave(testutil.Behaviour{})
	}
}

func TestReport(t *testing.T) {
	var r report
	ten := func(v float64) []float64 {
		out := make([]float64, 10)
		for i := range out {
			out[i] = v * (1 + float64(i-5)/100)
		}
		return out
	}
	r.compare("P", "good", "that", "ms", ten(1), ten(2), 1)
	r.compare("P", "bad", "that", "ms", ten(3), ten(2), 1.2)
	r.compare("P", "few", "that", "ms", ten(1)[:3], ten(2)[:3], 1)
	r.compare("P", "told", "that", "ms", ten(3), ten(2), 0)
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
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(data, &back); err != nil || len(back.Rows) != 5 || len(back.Rows[0].OursRounds) != 10 {
		t.Errorf("%v, %+v", err, back)
	}
}

func TestProcess(t *testing.T) {
	if d, err := cpuTime(os.Getpid()); err != nil || d <= 0 {
		t.Errorf("own CPU time %v, %v", d, err)
	}
	if m, err := memoryOf(os.Getpid()); err != nil || m.RSS < m.Anonymous || m.PSS <= 0 {
		t.Errorf("own memory %+v, %v", m, err)
	}
	const nobody = 1 << 30
	if _, err := cpuTime(nobody); err == nil {
		t.Error("CPU time of nobody")
	}
	if _, err := memoryOf(nobody); err == nil {
		t.Error("memory of nobody")
	}
}

// The whole run once, as short as it can be: it is here to show that it works, its figures are worth nothing.
func TestOnce(t *testing.T) {
	if testing.Short() {
		testutil.Skip(t, "takes half a minute; not with -short")
	}
	testutil.RequireRoot(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{short: true, rounds: 1, parts: allParts, root: root}
	for _, name := range programs {
		if _, err := os.Stat(b.bin(name)); err != nil {
			testutil.Skip(t, "no bin/"+name+": `make build tools` makes it")
		}
	}
	b.run(t)
	seen := map[string]bool{}
	for _, w := range b.Rows {
		seen[w.Part] = true
		if !(w.Ours.Median > 0) || w.Than != "" && !(w.Theirs.Median > 0) {
			t.Errorf("%s: %s: %v against %v", w.Part, w.Subject, w.Ours, w.Theirs)
		}
		if w.Than == "" && w.Limit > 0 && w.Ours.Median > w.Limit {
			t.Errorf("%s: %v, at most %v %s", w.Subject, w.Ours.Median, w.Limit, w.Unit)
		}
	}
	for _, part := range []string{pluginPart, insidePart, memoryPart, queryPart, sizePart} {
		if !seen[part] {
			t.Errorf("nothing about %q", part)
		}
	}
	if paired.Rounds < 9 {
		t.Error("too few rounds")
	}
}
