package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// cost is an outcome that lost so many of a thousand over UDP.
func cost(lost int) outcome {
	return outcome{UDP: load.Sum{Sent: 1000, Cache: 1000 - lost, Lost: lost, Gap: time.Duration(lost+1) * time.Millisecond}, TCP: load.Sum{Sent: 10, Cache: 10}, Kept: -1}
}

func costs(lost ...int) (out []outcome) {
	for _, n := range lost {
		out = append(out, cost(n))
	}
	return out
}

func with(o outcome, change func(*outcome)) []outcome {
	change(&o)
	return []outcome{o}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		limit             limit
		rounds            []outcome
		beyond, sometimes string
	}{
		"never tried":            {limit{}, nil, "", ""},
		"nothing lost":           {limit{}, costs(0, 0, 0), "", ""},
		"nothing asked":          {limit{}, []outcome{{}}, "nothing was asked", ""},
		"at the limit":           {limit{lost: 5}, costs(5, 5, 5), "", ""},
		"one bad round":          {limit{lost: 5}, costs(0, 9, 0), "", "lost over UDP 9 in the worst round"},
		"median beyond":          {limit{lost: 5}, costs(0, 6, 7), "lost over UDP 6 (worst 7), at most 5", ""},
		"two rounds":             {limit{lost: 5}, costs(0, 6), "lost over UDP 6", ""},
		"gap":                    {limit{lost: 500, gap: 50 * time.Millisecond}, costs(99), "longest gap 100 ms", ""},
		"share":                  {limit{share: 0.005}, costs(4), "", ""},
		"share beyond":           {limit{share: 0.005}, costs(6), "lost over UDP 0.6 %", ""},
		"one wrong answer":       {limit{lost: 99}, append(costs(0, 0), with(cost(0), func(o *outcome) { o.TCP.Wrong = 1 })...), "wrong answers", ""},
		"tcp":                    {limit{}, with(cost(0), func(o *outcome) { o.TCPLong = load.Sum{Sent: 10, Cache: 9, Lost: 1} }), "lost over TCP 1", ""},
		"tcp share":              {limit{share: 1, tcpShare: 0.01}, with(cost(0), func(o *outcome) { o.TCPLong = load.Sum{Sent: 10, Cache: 9, Lost: 1} }), "lost over TCP 5 %", ""},
		"cold cache":             {limit{kept: 0.95}, with(cost(0), func(o *outcome) { o.Kept = 0.5 }), "cache lost 50 %", ""},
		"warm cache":             {limit{kept: 0.95}, with(cost(0), func(o *outcome) { o.Kept = 0.96 }), "", ""},
		"slower":                 {limit{p99: 2}, with(cost(0), func(o *outcome) { o.Slower = 2.5 }), "p99 of hits × 2.50", ""},
		"memory":                 {limit{memory: 1.5}, with(cost(0), func(o *outcome) { o.Grown = 1.6 }), "memory × 1.60", ""},
		"refusal":                {limit{refusal: time.Second}, with(cost(0), func(o *outcome) { o.Refusal = 3 * time.Second }), "slowest SERVFAIL 3 s", ""},
		"answered, but SERVFAIL": {limit{}, with(cost(0), func(o *outcome) { o.UDP = load.Sum{Sent: 2, Cache: 1, Failed: 1} }), "lost over UDP 1", ""},
	} {
		beyond, sometimes := c.limit.verdict(c.rounds)
		for _, x := range []struct {
			got  []string
			want string
		}{{beyond, c.beyond}, {sometimes, c.sometimes}} {
			if (x.want == "") != (len(x.got) == 0) || !strings.Contains(strings.Join(x.got, "; "), x.want) {
				t.Errorf("%s: %q, want %q", name, x.got, x.want)
			}
		}
	}
}

func TestReport(t *testing.T) {
	r := report{Rounds: 3, Command: "make faults", Rows: []*row{
		{
			Fault: "good", Title: "a good one", Ours: costs(0, 2, 1), limit: limit{lost: 5},
			Others: map[string][]outcome{stock: costs(900, 800, 950), unbound: costs(300)}, Not: map[string]string{bare: noCache},
		},
		{
			Fault: "bad", Title: "a bad one", Ours: with(cost(7), func(o *outcome) { o.Kept = 0.25 }), limit: limit{lost: 5},
			Not: map[string]string{stock: "no counterpart"},
		},
		{Fault: "shaky", Title: "a shaky one", Ours: costs(0, 0, 9), limit: limit{lost: 5}},
		{Fault: "absent", Title: "an absent one", Not: map[string]string{"ours": "not in this build"}, limit: limit{lost: 5}},
	}}
	r.judge()
	if got := r.exceeded(true); len(got) != 1 || !strings.HasPrefix(got[0], "bad: lost over UDP 7") {
		t.Errorf("exceeded: %q", got)
	}
	if got := r.exceeded(false); len(got) > 0 {
		t.Errorf("exceeded, and judged without being asked for: %q", got)
	}
	r.Rows[1].promised = true
	if got := r.exceeded(false); len(got) != 1 {
		t.Errorf("a promise is broken, and the run says %q", got)
	}
	var out strings.Builder
	r.markdown(&out)
	for _, want := range []string{
		tableHead, "| 1000 + 10 | 1 / 2 | 0 / 0 | 3 ms | 900 / 0, 951 ms | 300 / 0, 301 ms | n/a | holds |\n",
		"| 8 ms, cache kept 25 % | n/a | - | - | EXCEEDED |\n", "| n/a | |  | - | - | - |  |\n",
		"| holds, not always |",
		"- bad, stock: no counterpart", "- absent, ours: not in this build", "- shaky: lost over UDP 9 in the worst round",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), noCache) {
		t.Errorf("the legend has the reason once for all rows:\n%s", out.String())
	}
	var columns []int
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "|") {
			columns = append(columns, strings.Count(line, "|"))
		}
	}
	if len(columns) != 6 || slices.Min(columns) != slices.Max(columns) {
		t.Errorf("the table is ragged: %v\n%s", columns, out.String())
	}
	path := filepath.Join(t.TempDir(), "faults.json")
	testutil.Must(t, r.save(path))
	data := testutil.ReadFile(t, path)
	var back report
	if err := json.Unmarshal([]byte(data), &back); err != nil || len(back.Rows) != 4 || back.Rows[0].Ours[1].UDP.Lost != 2 {
		t.Errorf("%v, %s", err, data)
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		300 * time.Microsecond: "0.3 ms", 5 * time.Millisecond: "5 ms", 1500 * time.Millisecond: "1.5 s", 6 * time.Second: "6 s", 12 * time.Second: "12 s",
	} {
		testutil.Equal(t, d.String(), want, short(d))
	}
	for _, c := range []struct {
		l    limit
		want string
	}{
		{limit{}, "0"}, {limit{lost: 5, gap: 50 * time.Millisecond}, "5, gap 50 ms"}, {limit{share: 0.005, memory: 1.5}, "0.5 %, memory × 1.5"},
		{limit{kept: 0.95}, "0, cache kept 95 %"}, {limit{refusal: 2 * time.Second, p99: 2}, "0, SERVFAIL 2 s, p99 × 2"},
	} {
		testutil.Equal(t, "a limit", c.want, c.l.String())
	}
	testutil.Equal(t, "more of a row", "1 ms, p99 × 5123", more(with(cost(0), func(o *outcome) { o.Slower = 5123.4 })))
	if median(nil) != 0 || median([]float64{3, 1, 2}) != 2 || median([]float64{1, 2}) != 2 {
		t.Error("median")
	}
}
