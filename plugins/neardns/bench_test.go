package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// BenchmarkVerbs compares ADD and DEL, called within one process, with the least that could do their work: opening a
// netlink socket in the pod's netns and one transaction that makes the pod table, or takes it away. All run in one process
// in the host's netns, on one pod, in turn; each round gives one ratio of median times.
//
//	go test -run xxx -bench Verbs -benchtime 1x ./plugins/neardns
//
// NEARDNS_BENCH_OUT names a file for the rounds; `make bench` reads it.
func BenchmarkVerbs(b *testing.B) {
	testutil.RequireRoot(b)
	rounds, calls := 15, 15
	if os.Getenv("NEARDNS_BENCH_SHORT") != "" {
		rounds, calls = 2, 2
	}
	for b.Loop() {
		series := map[string][]float64{} // microseconds, one a round
		for _, foreign := range []string{"", "host", "pod"} {
			measureVerbs(b, foreign, rounds, calls, series)
		}
		report := func(name, over string) {
			e := paired.Ratios(series[name], series[over])
			b.ReportMetric(e.Median, strings.ReplaceAll(name, " ", "-")+"/"+strings.ReplaceAll(over, " ", "-"))
			b.Logf("%s over %s: %s of %.0f us", name, over, e, paired.Median(series[over]).Median)
		}
		for _, beside := range []string{"", " foreign=host", " foreign=pod"} {
			report("ADD"+beside, "apply"+beside)
			report("DEL"+beside, "remove"+beside)
		}
		if path := os.Getenv("NEARDNS_BENCH_OUT"); path != "" {
			data, err := json.Marshal(series)
			testutil.Must(b, err)
			testutil.Must(b, os.WriteFile(path, data, 0o644))
		}
	}
}

// foreignRules is a table of 10,000 rules in 1,000 chains that have nothing to do with DNS.
func foreignRules() string {
	var text strings.Builder
	text.WriteString("table inet foreign {\n")
	for c := range 1000 {
		fmt.Fprintf(&text, "chain c%d {\n", c)
		for r := range 10 {
			fmt.Fprintf(&text, "ip daddr 10.%d.%d.%d tcp dport 80 counter accept\n", 128+c%100, c/100, r)
		}
		text.WriteString("}\n")
	}
	text.WriteString("chain hooked { type filter hook forward priority 10; jump c0; }\n}\n")
	return text.String()
}

// verbsJob is the measuring process's job: on standard input, since it is this test binary in another netns.
type verbsJob struct {
	Args          skel.CmdArgs
	Rounds, Calls int
}

func measureVerbs(b *testing.B, foreign string, rounds, calls int, series map[string][]float64) {
	node := testutil.NewNode(b, testutil.Options{Families: testutil.Dual, Attach: testutil.PTP, NoDNS: true, Name: "cost"})
	pod := node.AddPod("pod")
	suffix := ""
	if ns := map[string]*testutil.NetNS{"host": node.Host, "pod": pod.NetNS}[foreign]; ns != nil {
		ns.RunInput(foreignRules(), "nft", "-f", "-")
		suffix = " foreign=" + foreign
	}
	r := newCRI(b, node.Host)
	q := addRequest("c1", pod, object{"redirects": []string{"10.96.0.10", "fd00:96::a"}})
	job, err := json.Marshal(verbsJob{
		Args:   skel.CmdArgs{ContainerID: "c1", Netns: pod.Path(), IfName: "eth0", Args: q.Args, StdinData: r.conf(q.Conf)},
		Rounds: rounds, Calls: calls,
	})
	testutil.Must(b, err)
	// A process of its own has all of its threads in the host's netns, as the plugin has.
	self, err := os.Executable()
	testutil.Must(b, err)
	out := node.Host.RunInput(string(job), "env", verbsChild+"=1", self)
	took := map[string][]float64{}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&took); err != nil {
		b.Fatalf("%v in %q", err, out)
	}
	for name, times := range took {
		series[name+suffix] = times
	}
}

const verbsChild = "NEARDNS_BENCH_VERBS"

// verbsMain is BenchmarkVerbs's other process.
func verbsMain() int {
	var job verbsJob
	err := json.NewDecoder(os.Stdin).Decode(&job)
	if err == nil {
		var took map[string][]float64
		if took, err = timeVerbs(job); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(took)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func timeVerbs(job verbsJob) (map[string][]float64, error) {
	ns, err := os.Open(job.Args.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	bare := func(f func(*nft.Nftables) error) error {
		n, err := nft.Open(int(ns.Fd()))
		if err != nil {
			return err
		}
		defer n.Close()
		return f(n)
	}
	e := env{stdout: io.Discard, stderr: io.Discard, kernel: realKernel{}}
	table := steer.Pod{Redirects: []steer.Redirect{redirect4, redirect6}}
	steps := []struct {
		name string
		f    func() error
	}{
		{"ADD", func() error { return add(context.Background(), e, &job.Args) }},
		{"DEL", func() error { return del(context.Background(), e, &job.Args) }},
		{"apply", func() error { return bare(func(n *nft.Nftables) error { return n.Apply(table) }) }},
		{"remove", func() error { return bare((*nft.Nftables).Remove) }},
	}
	medians := map[string][]float64{}
	for round := range job.Rounds + 1 { // the first one warms up
		took := map[string][]float64{}
		for range job.Calls {
			for _, s := range steps {
				begun := time.Now()
				if err := s.f(); err != nil {
					return nil, fmt.Errorf("%s: %w", s.name, err)
				}
				took[s.name] = append(took[s.name], float64(time.Since(begun).Nanoseconds())/1e3)
			}
		}
		for name, times := range took {
			if round > 0 {
				medians[name] = append(medians[name], paired.Middle(times))
			}
		}
	}
	return medians, nil
}
