//go:build timing

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/pkg/testutil"
)

// found reports whether a peer is installed: `make bench` sees to that, `make test` does not.
func (b *bench) found(p peers.Peer) bool {
	_, err := peers.Find(p.Program)
	return err == nil
}

// TestTimingShortBench is the whole run once, as short as it can be and with few servers, and fails if ours loses more queries than the
// stock CoreDNS next to it does. All other figures are printed: of one short round they are worth nothing.
//
// State: TestReport, TestMetric (pkg/testutil). Bound: none, it compares two servers; `make bench-check` has the figures.
func TestTimingShortBench(t *testing.T) {
	testutil.RequireRoot(t)
	root, err := filepath.Abs("../..")
	testutil.Must(t, err)
	b := &bench{short: true, rounds: 1, names: 500, parts: []string{"plugin", "memory", "query", "growth"}, with: []string{stock}, workloads: []string{"W8"}, root: root}
	if _, err := os.Stat("/sys/fs/bpf"); err == nil {
		b.with = append(b.with, kernelOption)
	}
	if err := b.options(); err != nil {
		testutil.Skip(t, err.Error())
	}
	if peer := peers.All()[0]; b.found(peer) {
		b.with = append(b.with, peer.Name)
	}
	for _, name := range needed {
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
		t.Logf("%s: %s: %v %s against %v, limit %v", w.Part, w.Subject, w.Ours.Median, w.Unit, w.Theirs.Median, w.Limit)
	}
	for _, part := range []string{pluginPart, insidePart, sizePart, growthPart} {
		if !seen[part] {
			t.Errorf("nothing about %q", part)
		}
	}
	for _, st := range b.stands {
		s := st.name
		for _, k := range []cellKey{{"W8", "full", "server"}, {"W8", "1k", "p99"}, {"W8", "1k", "hit"}, {memoryLoad, "full", "RSS"}} {
			asleep := s == inKernel && k.Figure == "server" // the agent, as long as the kernel answers
			if v := b.median(k, s); !(v > 0 || asleep && v == 0) {
				t.Errorf("%s, %v: %v", s, k, v)
			}
		}
		if v := b.median(cellKey{"W8", "restart", "lost"}, s); math.IsNaN(v) {
			t.Errorf("%s: nothing about a restart", s)
		}
	}
	// At full speed a server has more queries than it can read, and one measurement of each may differ by a full queue.
	for measure, more := range map[string]float64{"full": 1, "1k": 0} {
		k := cellKey{"W8", measure, "lost"}
		if mine, theirs := b.median(k, ours), b.median(k, stock); mine > theirs+more {
			t.Errorf("%v: ours lost %v %%, the stock CoreDNS %v %%; the agent:\n%s", k, mine, theirs, b.outputOf(ours))
		}
	}
	if slices.Contains(b.with, kernelOption) {
		most := 0.0 // of one measurement: an agent that gets no CPU loses its leases, and its offloaded entries, for some seconds
		for _, m := range measures {
			if share := b.median(cellKey{"W8", m.key, "kernel"}, inKernel); share > most {
				most = share
			}
		}
		t.Logf("the kernel answered %v %% of the hits", most)
		if !seen[kernelPart] {
			t.Errorf("nothing about %q", kernelPart)
		}
	}
	if b.Noise.Others < 0 || b.Noise.Others > 1 || b.Noise.LagP99 == 0 {
		t.Errorf("noise %+v", b.Noise)
	}
	fmt.Fprintln(t.Output(), b.Noise.String())
}

// outputOf is what a server wrote: a lost query has its reason there, or none.
func (b *bench) outputOf(name string) string {
	for _, s := range b.stands {
		if s.name == name {
			return s.server.Output()
		}
	}
	return ""
}
