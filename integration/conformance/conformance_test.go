package conformance

import (
	"os"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

const (
	cluster = "[sig-network] DNS should provide DNS for the cluster [Conformance]"
	gce     = "[sig-network] DNS should provide DNS for the cluster [Provider:GCE]"
	stub    = "[sig-network] DNS configMap nameserver Change stubDomain should be able to change stubDomain configuration [Slow] [Serial]"
	host    = "[sig-network] DNS HostNetwork a"
)

func TestReadReport(t *testing.T) {
	f, err := os.Open("testdata/report.xml")
	testutil.Must(t, err)
	defer f.Close()
	got, err := ReadReport(f)
	testutil.Must(t, err)
	want := []Test{
		{Name: host, Outcome: Failed, Reason: "runtime error: index out of range"},
		{Name: stub, Outcome: Failed, Reason: "dig result did not match: []string{} after 2m0s"},
		{Name: cluster, Outcome: Passed},
		{Name: gce, Outcome: Skipped, Reason: "Only supported for providers [gce] (not local)"},
	}
	testutil.Equal(t, "results", want, got)
}

func TestReadReportRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no XML":         {"PASS", "read the suite's report"},
		"cut off":        {"<testsuites><testsuite><testcase", "read the suite's report"},
		"nothing chosen": {`<testsuites><testsuite><testcase name="[It] x [y]" status="skipped"><skipped message="skipped"/></testcase></testsuite></testsuites>`, "no test that was chosen"},
		"set-up failed": {`<testsuites><testsuite><testcase name="[SynchronizedBeforeSuite]" status="failed"><failure message="no node"/></testcase></testsuite></testsuites>`,
			"the suite itself failed in [SynchronizedBeforeSuite]: no node"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadReport(strings.NewReader(c.text))
			testutil.WantError(t, err, c.want)
		})
	}
}

func TestReasonIsShort(t *testing.T) {
	text := `<testsuites><testsuite><testcase name="[It] x [y]" status="failed"><failure message="` + strings.Repeat("ä ", 500) + `"/></testcase></testsuite></testsuites>`
	got, err := ReadReport(strings.NewReader(text))
	if err != nil || len(got) != 1 || len(got[0].Reason) > mostReason+3 || !strings.HasSuffix(got[0].Reason, "ä…") && !strings.HasSuffix(got[0].Reason, " …") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzReadReport(f *testing.F) {
	f.Add(testutil.ReadFile(f, "testdata/report.xml"))
	f.Add(`<testsuites><testsuite><testcase name="[It] []" status="skipped"><skipped message=""/></testcase></testsuite></testsuites>`)
	f.Fuzz(func(t *testing.T, text string) {
		tests, err := ReadReport(strings.NewReader(text))
		if (err == nil) == (len(tests) == 0) {
			t.Errorf("%d tests with the error %v", len(tests), err)
		}
		for _, one := range tests {
			if strings.Contains(one.Reason, "\n") || one.Outcome == Passed && one.Reason != "" {
				t.Errorf("%+v", one)
			}
		}
	})
}

func TestQuestions(t *testing.T) {
	const metrics = `# HELP neardns_namespace_queries_total Queries of this node's pods, by namespace.
# TYPE neardns_namespace_queries_total counter
neardns_namespace_queries_total{namespace="dns-1"} 12
neardns_namespace_queries_total{namespace="_other"} 1.5e+03
neardns_namespace_hits_total{namespace="dns-1"} 7
`
	if got, err := Questions(strings.NewReader(metrics)); got != 1512 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := Questions(strings.NewReader("neardns_namespace_queries_total{x=\"y\"} many\n")); err == nil {
		t.Error("no error for a value that is no number")
	}
}

func result() Result {
	passed := []Test{{Name: stub, Outcome: Passed}, {Name: cluster, Outcome: Passed}, {Name: gce, Outcome: Skipped, Reason: "Only gce"}}
	var r Result
	for _, c := range []Column{
		{Proxy: "nftables", On: Neardns, Questions: 700, Seconds: 70, Tests: passed},
		{Proxy: "iptables", On: Killed, Questions: 300, Kills: 4, Seconds: 90, Tests: passed},
		{Proxy: "iptables", On: Bare, Seconds: 1, Tests: passed[:1]},
		{Proxy: "nftables", On: Bare, Seconds: 60, Tests: passed},
		{Proxy: "iptables", On: Neardns, Questions: 900, Seconds: 66, Tests: passed},
		{Proxy: "iptables", On: Bare, Seconds: 60, Tests: passed},
	} {
		r = r.With("v1.36.2", c)
	}
	return r
}

func TestResult(t *testing.T) {
	r := result()
	var order []string
	for _, c := range r.Columns {
		order = append(order, c.Proxy+" "+string(c.On))
	}
	want := []string{"iptables bare", "iptables neardns", "iptables killed", "nftables bare", "nftables neardns"}
	testutil.Equal(t, "order of the columns", want, order)
	if r.Columns[0].Seconds != 60 || len(r.Columns[0].Tests) != 3 {
		t.Errorf("the second run of its kind is not the one that is kept: %+v", r.Columns[0])
	}
	back, err := Parse([]byte(r.String()))
	testutil.Must(t, err)
	testutil.Equal(t, "written and read", r, back)
	if _, err := Parse([]byte(`{"kubernetes": "v1", "more": 1}`)); err == nil {
		t.Error("a key that is not known is taken")
	}
	if next := r.With("v1.37.0", Column{Proxy: "iptables", On: Bare}); len(next.Columns) != 1 {
		t.Errorf("runs on another release are kept: %+v", next.Columns)
	}
	if got := r.Faults(); got != nil {
		t.Errorf("faults: %q", got)
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		column Column
		want   []string
	}{
		"fails with neardns": {
			Column{Proxy: "iptables", On: Neardns, Questions: 1, Tests: []Test{{Name: stub, Outcome: Failed, Reason: "dig"}, {Name: cluster, Outcome: Passed}}},
			[]string{"iptables, neardns: " + stub + " failed: dig"}},
		"skipped, and not there": {
			Column{Proxy: "iptables", On: Killed, Questions: 1, Kills: 1, Tests: []Test{{Name: stub, Outcome: Skipped, Reason: "no wish"}}},
			[]string{"iptables, killed: " + stub + " passes on the bare node, and is skipped here: no wish",
				"iptables, killed: " + cluster + " passes on the bare node, and did not run here"}},
		"fails on the bare node": {
			Column{Proxy: "nftables", On: Bare, Tests: []Test{{Name: cluster, Outcome: Failed, Reason: "x"}}},
			[]string{"nftables, bare: " + cluster + " failed: x"}},
		"nobody asked the agent": {
			Column{Proxy: "iptables", On: Neardns, Tests: []Test{{Name: stub, Outcome: Passed}}},
			[]string{"iptables, neardns: the agent answered no question, so that the run shows nothing of it"}},
		"nobody killed the agent": {
			Column{Proxy: "iptables", On: Killed, Questions: 1, Tests: []Test{{Name: stub, Outcome: Passed}}},
			[]string{"iptables, killed: the agent was not killed once"}},
		"nothing to compare with": {
			Column{Proxy: "ipvs", On: Killed, Questions: 1},
			[]string{"ipvs, killed: there is no run on the bare node to compare with"}},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Equal(t, "faults", c.want, result().With("v1.36.2", c.column).Faults())
		})
	}
}

func TestPage(t *testing.T) {
	const page = "# Title\n\n<!-- conformance -->\nold\n<!-- end of conformance -->\n\nmore\n"
	r := result()
	r = r.With("v1.36.2", Column{Proxy: "nftables", On: Neardns, Seconds: 70, Tests: []Test{{Name: stub, Outcome: Failed, Reason: "dig."}}})
	got, err := r.Page(page)
	testutil.Must(t, err)
	want := `# Title

<!-- conformance -->
| test of Kubernetes v1.36.2 | iptables: bare node | iptables: neardns | iptables: agent killed | nftables: bare node | nftables: neardns |
| --- | --- | --- | --- | --- | --- |
| ` + stub + ` | passed | passed | passed | passed | **failed** |
| ` + cluster + ` | passed | passed | passed | passed | – |
| ` + gce + ` | skipped | skipped | skipped | skipped | – |
| tests that passed | 2 of 3 | 2 of 3 | 2 of 3 | 2 of 3 | 0 of 1 |
| queries of pods that the agent answered | – | 900 | 300 | – | 0 |
| times that the agent was killed | – | 0 | 4 | – | 0 |
| minutes | 1.0 | 1.1 | 1.5 | 1.0 | 1.2 |

*` + stub + `* fails: dig (nftables, neardns).

*` + gce + `* skips itself: Only gce (iptables, bare; iptables, neardns; iptables, killed; nftables, bare).
<!-- end of conformance -->

more
`
	testutil.Equal(t, "page", want, got)
	if again, err := r.Page(got); again != got || err != nil {
		t.Errorf("drawn twice it is another page: %v", err)
	}
	if _, err := r.Page("# Title\n"); err == nil {
		t.Error("a page without a place is taken")
	}
}
