package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/neardns/neardns/integration/bench/workload"
)

// page is what docs/project/bench.md shows of a result. README.md takes rows of its first table.
func (r *report) page() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	kind := "make bench"
	if r.Short {
		kind = "make bench SHORT=1"
	}
	p("`%s` took these figures on %s, on %s.\n%s\n", kind, r.Taken.Format("2006-01-02"), r.Machine, strings.ReplaceAll(r.Noise.String(), ". ", ".\n"))
	p("| what | neardns, to stock |\n| --- | --- |")
	for _, l := range r.toStock() {
		p("| %s | %s |", l[0], l[1])
	}
	p("\n%s", r.sideBySide())
	p("![neardns and other DNS caches](bench.svg)\n")
	if text := r.kernelTable(); text != "" {
		p("With `kernelHits` ([hits in the kernel](../kernel-hits.md)), and what it is held to:\n\n%s", text)
	}
	if len(r.Latencies) > 0 {
		p("![how long answers take](latency.svg)\n")
	}
	p("Ratios to each server; a ratio in bold is surely better than 1:\n")
	for _, s := range r.subjects() {
		p("%s", r.ratioTable(s))
	}
	p("%s\n\n%s", proposalText, r.proposalTable())
	p("Server's CPU per answer at full speed, in µs:\n\n%s", r.short("full", "server"))
	p("99th percentile at 1,000 a second, in µs:\n\n%s", r.short("1k", "p99"))
	p("Answered without the upstream at full speed, in percent:\n\n%s", r.short("full", "hit"))
	for _, n := range r.Notes {
		p("%s\n", n)
	}
	return b.String()
}

// sideBySide has the figures of a new installation and of what it takes the place of, where other tables have ratios.
func (r *report) sideBySide() string {
	nodes := slices.DeleteFunc([]string{inKernel, bare, stock, "unbound"}, func(s string) bool { return !slices.Contains(r.servers(), s) })
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n| ---%s |\n", strings.Join(nodes, " | "), strings.Repeat(" | ---:", len(nodes)))
	for _, row := range slices.Concat([]headline{
		{"W1, 1,000 a second: p50", cellKey{"W1", "1k", "p50"}},
		{"misses, full speed: whole node's CPU per answer", cellKey{workload.Miss, "full", "node"}},
		{"CPU without queries, of one core", cellKey{idleLoad, "idle", "cpu"}},
		{"W1, 1,000 a second: no right answer", cellKey{"W1", "1k", "lost"}},
	}, headlines) {
		fmt.Fprintf(&b, "| %s, %s", row.text, figureTexts[row.key.Figure].unit)
		for _, s := range nodes {
			fmt.Fprintf(&b, " | %s", cmp.Or(value(r.median(row.key, s), figureTexts[row.key.Figure]), "–"))
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

const proposalText = `The benchmark of NodeLocal DNSCache's proposal (KEP-1024), in its form: answers a second at full speed.
With caching, each name is queried before the measurement, external ones, too; those of the proposal were mostly unique.
Without caching, each query has a new name: of a Service, outside the cluster, or one that does not exist.
For new names, one Service and twenty are the same measurement, so Single Service without caching has no figure (–).
neardns has no setting that turns its cache off, and the proposal's own figure for that test contains cache hits of Unbound.
A test that this run did not include is "not measured".`

// proposal are the tests of the proposal's table, each with the workload that is measured for it; "": none.
var proposal = []struct{ test, caching, workload string }{
	{"Multiple services(20)", "Yes", "W1"}, {"External queries", "Yes", "W12"},
	{"Single Service", "Yes", "W10"}, {"Single NXDomain", "Yes", "W11"},
	{"Multiple services(20)", "No", workload.Miss}, {"External queries", "No", "W13"},
	{"Single Service", "No", ""}, {"Single NXDomain", "No", "W14"},
}

// proposalTable has the rows of the table in NodeLocal DNSCache's enhancement proposal (KEP-1024).
func (r *report) proposalTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| Test Type | Program | Caching | QPS |\n| --- | --- | --- | ---: |\n")
	for _, row := range proposal {
		for _, s := range r.servers() {
			if s == bare {
				continue
			}
			text := "–"
			if row.workload != "" {
				text = cmp.Or(value(r.median(cellKey{row.workload, "full", "qps"}, s), figureTexts["qps"]), "not measured")
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.test, s, row.caching, text)
		}
	}
	return b.String()
}

// short is one of the tables.
func (r *report) short(measure, figure string) string {
	want := title(cellKey{"", measure, figure}) + ": "
	for _, t := range r.tables() {
		if strings.HasPrefix(t.title, want+figureTexts[figure].text) {
			return t.text
		}
	}
	return ""
}

// toStock are the rows next to the stock CoreDNS: what, and how much. They are of the default installation where a row does not name
// another.
func (r *report) toStock() [][2]string {
	standard := inKernel
	if !slices.Contains(r.servers(), inKernel) {
		standard = ours
	}
	ratio := func(k cellKey, subject string) string { return r.ratio(k, subject, stock).String() }
	memory := func(k cellKey, subject, more string) string {
		return fmt.Sprintf("%s (%.0f MiB%s)", ratio(k, subject), r.median(k, subject), more)
	}
	started, filled, idle := cellKey{memoryLoad, "start", "RSS"}, cellKey{memoryLoad, "full", "RSS"}, cellKey{idleLoad, "idle", "cpu"}
	out := [][2]string{
		{"whole node's CPU per hit, at full speed", ratio(cellKey{"W1", "full", "node"}, standard)},
		{"the same without kernel hits", ratio(cellKey{"W1", "full", "node"}, ours)},
		{"server's CPU per hit without kernel hits", ratio(cellKey{"W1", "full", "server"}, ours)},
		{"the same with `fastPath: \"off\"`", ratio(cellKey{"W1", "full", "server"}, plain)},
		{"whole node's CPU per hit, 1,000 a second", ratio(cellKey{"W1", "1k", "node"}, standard)},
		{"99th percentile of a hit's time, 1,000 a second", ratio(cellKey{"W1", "1k", "p99"}, standard)},
		{"server's CPU per miss, at full speed", ratio(cellKey{workload.Miss, "full", "server"}, standard)},
		{"resident memory after the start", memory(started, standard, "")},
		{"the same memory without kernel hits", memory(started, ours, "; the NodeLocal proposal set 25 Mi as limit")},
		{"resident memory with 10,000 names cached", memory(filled, standard, "")},
		{"CPU without queries (the probes)", fmt.Sprintf("%.1f %% of a core, CoreDNS: %.1f %%", r.median(idle, standard), r.median(idle, stock))},
	}
	asked := map[string]questions{}
	for _, q := range r.Questions {
		asked[q.Server] = q
	}
	out = append(out, [2]string{"queries lost", fmt.Sprintf("%d of %s, CoreDNS: %d of %s", asked[standard].Lost, thousands(float64(asked[standard].Answered+asked[standard].Lost)),
		asked[stock].Lost, thousands(float64(asked[stock].Answered+asked[stock].Lost)))})
	for _, w := range []struct{ subject, than, text string }{
		{"ADD", "portmap, nftables, one port", "ADD, to the reference `portmap` with one port"},
		{"ADD", transaction, "ADD, to a process that only makes the same transaction"},
		{"ADD, dual stack", transaction, "the same, dual stack"},
		{"DEL", transaction, "DEL, to a process that only makes the same transaction"},
		{"DEL, dual stack", transaction, "the same of DEL, dual stack"},
		{"ADD beside 10,000 nft rules on the host", "the same without", "ADD with 10,000 foreign nftables rules on the host, to without"},
		{"ADD with overlays, annotations and the sandbox's file, CPU time", "the same without", "CPU time of ADD with overlays, annotations and the sandbox's file changed, to without"},
		{"plugin binary", "", "plugin binary"},
		{"10000 names", "1 name", "server's CPU per hit with 10,000 names, to one"},
		{"110 pods", "1 pod", "server's CPU per hit with 110 pods, to one"},
		{"110 pods, " + stock, "1 pod", "the same of the stock CoreDNS"},
	} {
		for _, row := range r.Rows {
			if row.Subject != w.subject || row.Than != w.than || row.Part == insidePart || row.Part == kernelPart {
				continue
			}
			text := row.Ratio.String()
			if w.than == "" {
				text = fmt.Sprintf("%.1f %s", row.Ours.Median, row.Unit)
			}
			out = append(out, [2]string{w.text, text})
		}
	}
	others := fmt.Sprintf("%.0f %%", 100*r.Noise.Others)
	if r.Noise.busy() {
		others += ": a busy machine, these figures are no result"
	}
	return append(out, [2]string{"CPU that other work of the machine took meanwhile", others})
}
