package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestReport(t *testing.T) {
	good := cell{Row: "at-once", Title: "all join", Server: "BIND", Bar: "0 lost", Text: "50 clusters: lost 0"}
	bad := cell{Row: "at-once", Title: "all join", Server: "Knot", Bar: "0 lost", Text: "50 clusters: lost 1"}
	good.wrong("round 1", nil, nil)
	bad.wrong("round 1", []string{"app.z. A 192.0.2.1"}, nil)
	bad.wrong("round 2", []string{"app.z. A 192.0.2.2"}, []string{"x"})
	r := result{Cells: []cell{good, bad}}
	if (result{Cells: []cell{good}}).good() == false || r.good() {
		t.Error("a missed bar does not count")
	}
	if bad.Figures["lost"] != 2 || bad.Figures["left over"] != 1 {
		t.Errorf("figures %v", bad.Figures)
	}
	var table bytes.Buffer
	r.table(&table)
	for _, want := range []string{
		"| what happens (`ONLY=`) | bar | BIND | Knot |\n| --- | --- | --- | --- |\n",
		"| all join (at-once) | 0 lost | 50 clusters: lost 0 | **MISSED**: 50 clusters: lost 1 |\n",
		"at-once, Knot: round 1: lost 1 [app.z. A 192.0.2.1], left over 0 []\n",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	file := filepath.Join(t.TempDir(), "result.json")
	testutil.Must(t, r.save(file))
	if back := stored(t, file); len(back.Cells) != 2 || back.Cells[1].Figures["lost"] != 2 {
		t.Errorf("%+v", back)
	}
}

// A bar in seconds that is missed next to a slow server is drawn by a word of its own, and fails nothing. The server is slow if its bare
// updates take half of the time.
func TestSlowServer(t *testing.T) {
	for _, test := range []struct {
		size       size
		took, bare time.Duration
		good       bool
		want       string
	}{
		{whole, 30 * time.Second, time.Second, true, "| bar | text |"},
		{whole, 50 * time.Second, 25 * time.Second, true, "| bar | **MISSED BY THE SERVER**: text |\n\n" +
			"x, BIND: whole after 50.0 s, more than 30.0 s; bare updates of the same records take the server 25.0 s\n"},
		{whole, 50 * time.Second, 24 * time.Second, false, "| bar | **MISSED**: text |\n\nx, BIND: whole after 50.0 s, more than 30.0 s\n"},
		{small, 50 * time.Second, 25 * time.Second, true, "| bar | text |"},
	} {
		c := cell{Row: "x", Server: "BIND", Bar: "bar", Text: "text"}
		test.size.withinServers(&c, 30*time.Second, "whole", test.took, test.bare)
		r := result{Cells: []cell{c}}
		var table strings.Builder
		r.table(&table)
		if r.good() != test.good || !strings.Contains(table.String(), test.want) {
			t.Errorf("%v of 30 s, bare updates %v: good is %t, want %q in\n%s", test.took, test.bare, r.good(), test.want, table.String())
		}
	}
}

// The bare updates have each record of the zone but the server's own, a set's in different messages.
func TestDeal(t *testing.T) {
	zone := records(t, "z. 60 SOA ns1 h 1 2 3 4 5\nz. 60 NS ns1.z.\nns1.z. 60 A 192.0.2.53\n"+
		"app.z. 60 A 192.0.2.1\napp.z. 60 A 192.0.2.2\napp.a._neardns.z. 60 TXT claim\n")
	var got []string
	for _, m := range deal("z.", zone, 2) {
		var names []string
		for _, rr := range m.Ns {
			names = append(names, strings.Join(strings.Fields(rr.String()), " "))
		}
		got = append(got, m.Question[0].Name+" "+strings.Join(names, ", "))
	}
	want := []string{"z. app.z. 60 IN A 192.0.2.1, app.a._neardns.z. 60 IN TXT \"claim\"", "z. app.z. 60 IN A 192.0.2.2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the updates (-want +got):\n%s", d)
	}
}

// TestPage: the table of the measurements is what the committed result draws, and it is of the run that .ci/lanes.txt has.
func TestPage(t *testing.T) {
	t.Chdir("../..")
	r := stored(t, resultFile)
	if r.Short || len(r.Cells) < 3*10 || r.Commit == "" {
		t.Errorf("%s is of %d cells, short: %t, at commit %q; want a whole run's, by make", resultFile, len(r.Cells), r.Short, r.Commit)
	}
	page, err := os.ReadFile(resultPage)
	testutil.Must(t, err)
	golden.Part(t, resultPage, "compat zones", r.drawn())
	if line := "Taken by `make shared-zones` at commit " + r.Commit; !strings.Contains(string(page), line) {
		t.Errorf("%s does not have %q: if bars were missed, write the commit and these bars into .ci/lanes.txt, and run .ci/lanes -mark",
			resultPage, line)
	}
}

// TestKeep: a run leaves its result and the page with its table, and nothing else of the page changes.
func TestKeep(t *testing.T) {
	t.Chdir(t.TempDir())
	testutil.WriteFile(t, resultFile, "")
	testutil.WriteFile(t, resultPage, "before\n<!-- compat zones -->\nold\n<!-- end of compat zones -->\nbehind\n")
	c := cell{Row: "away", Title: "the primary is away", Server: "BIND", Bar: "whole within 10 s", Text: "whole 12 s after"}
	c.miss("whole after 12 s,\nmore than 10 s")
	r := result{Day: "2026-01-31", Commit: "0123abcd", Cells: []cell{c}}
	testutil.Must(t, r.keep())
	page, err := os.ReadFile(resultPage)
	testutil.Must(t, err)
	const want = `before
<!-- compat zones -->
| what happens (` + "`ONLY=`" + `) | bar | BIND |
| --- | --- | --- |
| the primary is away (away) | whole within 10 s | **MISSED**: whole 12 s after |

away, BIND: whole after 12 s, more than 10 s

Run 2026-01-31 at commit 0123abcd.
<!-- end of compat zones -->
behind
`
	if d := cmp.Diff(want, string(page)); d != "" {
		t.Errorf("the page (-want +got):\n%s", d)
	}
	if d := cmp.Diff(r, stored(t, resultFile)); d != "" {
		t.Errorf("the result (-want +got):\n%s", d)
	}
}

func stored(t *testing.T, name string) (r result) {
	t.Helper()
	text, err := os.ReadFile(name)
	testutil.Must(t, err)
	testutil.Must(t, json.Unmarshal(text, &r))
	return r
}

func TestStatusLog(t *testing.T) {
	var l statusLog
	for _, part := range []string{`{"host":"a.","programmed":`, "false,\"reason\":\"Contended\"}\nnoise\n", `{"host":"a.","programmed":true}` + "\n", `{"zone":"z.","programmed":true}` + "\n"} {
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.of("a."); !s.Programmed || s.Reason != "" || l.count() != 3 || !l.of("z.").Programmed {
		t.Errorf("%+v, %d lines", s, l.count())
	}
}
