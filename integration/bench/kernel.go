package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/workload"
)

// kernelPart is what the kernel's program itself takes, by the kernel's own count (bpf_stats), which is part of it.
const kernelPart = "Hits in the kernel: the program's time"

const (
	kernelTime        = 1.0   // microseconds of a hit, at most
	kernelGrowthLimit = 1.3   // times
	kernelNames       = 4_000 // the agent lends the kernel 4,096 answers at most
)

// kernelFolder gives a stand a BPF file system of its own, which outlives its agents as a node's does, and returns how a program is started
// that sees it in the machine's place.
func (b *bench) kernelFolder(s *stand) []string {
	dir := filepath.Join(s.dir, "bpf")
	b.must(os.Mkdir(dir, 0o700))
	b.must(unix.Mount("bpf", dir, "bpf", 0, ""))
	b.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return []string{"unshare", "--mount", "--propagation", "slave", "sh", "-c", `mount --bind "$0" /sys/fs/bpf && exec "$@"`, dir}
}

// warm asks every question of a load once, and where the kernel is to answer, until the agent has lent what it was asked for.
func (b *bench) warm(s *stand, l generator.Load) {
	s.ask(l)
	if s.name != inKernel {
		return
	}
	// The agent lends what it says for the second time, and declines what comes while it has too much to lend: that is lent by the next time.
	for range 3 {
		s.ask(l)
		b.rest(20 * time.Millisecond)
	}
}

// inKernel tells what is missing until the kernel answers all of a stand's pods.
func (s *stand) inKernel() error {
	pods, err := s.metric(`neardns_kernel_pods{state="answered"}`)
	if err == nil && int(pods) != s.steered {
		err = fmt.Errorf("the kernel answers %v of %d pods", pods, s.steered)
	}
	return err
}

// kernelHits is how many questions the kernel has answered so far.
func (s *stand) kernelHits() int64 {
	if s.name != inKernel {
		return 0
	}
	n, err := s.metric("neardns_kernel_hits_total")
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
	return int64(n)
}

// metric is the sum of a metric of the agent's, over all labels that are not named.
func (s *stand) metric(name string) (float64, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		s.node.Host.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, addr) })
		return conn, err
	}}}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://127.0.0.1:9253/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer answer.Body.Close()
	return sumOf(answer.Body, name)
}

// sumOf adds up the values of a metric in Prometheus's text format.
func sumOf(text io.Reader, name string) (sum float64, err error) {
	there := false
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		sum, there = sum+v, true
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	if !there {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}

// kernelGrowth measures the program's time for each hit among few and many answers, and at one pod's link and at those of a full node.
func (b *bench) kernelGrowth(s *stand) {
	pods := b.fill(s)
	program, err := s.hitsProgram()
	b.must(err)
	defer program.Close()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	b.must(err)
	defer stats.Close()
	w, err := workload.New("W1", seed, b.short)
	b.must(err)
	names := func(n int) generator.Load {
		return generator.Load{Workload: "memory", Names: n, Sockets: 2, Window: window / 2}
	}
	from := func(pods []string) generator.Load {
		return generator.Load{Workload: w.Name, Seed: seed, Small: b.short, Sockets: growthPods, Window: 1, Pods: pods}
	}
	many := fmt.Sprintf("%d answers", min(b.names, kernelNames))
	ways := map[string]generator.Load{"1 answer": names(1), many: names(min(b.names, kernelNames)), "1 pod": from(pods[:1]), "110 pods": from(pods)}
	figures := map[string][]float64{}
	for n := range b.queryRounds() {
		b.quiet([]*stand{s})
		for _, way := range turned([]string{"1 answer", many, "1 pod", "110 pods"}, n) {
			warm := ways[way]
			warm.Each, warm.Pods, warm.Sockets, warm.Window = true, nil, 2, 16
			b.warm(s, warm)
			l := ways[way]
			l.CPU, l.Duration = 1+clientCPU, b.long(measures[0].full, measures[0].short)
			before, err := program.Stats()
			b.must(err)
			r := s.measured(l)
			after, err := program.Stats()
			b.must(err)
			if float64(r.kernel) < 0.9*float64(r.Answered) {
				b.remark("%s, %s: the kernel answered only %.1f %% in one round.", s.name, way, 100*float64(r.kernel)/float64(r.Answered))
			}
			figures[way] = append(figures[way], round(float64((after.Runtime-before.Runtime).Nanoseconds())/1e3/float64(after.RunCount-before.RunCount)))
		}
	}
	b.value(kernelPart, "1 answer, 1 pod", "us", figures["1 answer"], kernelTime)
	b.compare(kernelPart, many, "1 answer", "us", figures[many], figures["1 answer"], kernelGrowthLimit)
	b.compare(kernelPart, "110 pods", "1 pod", "us", figures["110 pods"], figures["1 pod"], kernelGrowthLimit)
}

// hitsProgram is the program that a stand's agents have loaded.
func (s *stand) hitsProgram() (*ebpf.Program, error) {
	pins, err := filepath.Glob(filepath.Join(s.dir, "bpf", "neardns*", "*", "neardns_hits"))
	if err != nil {
		return nil, err
	}
	if len(pins) != 1 {
		return nil, fmt.Errorf("%s has pinned %q, and not one program", s.name, pins)
	}
	return ebpf.LoadPinnedProgram(pins[0], nil)
}

// bars of hits in the kernel: of medians of paired ratios to the servers named.
var bars = []struct {
	text   string
	key    cellKey
	limits map[string]float64 // at least, of a figure of which more is better, and else at most
}{
	{"throughput on one core, client included", cellKey{"W1", "shared", "qps"}, map[string]float64{stock: 8, "unbound": 2}},
	{"one in flight: p50", cellKey{"W1", "one", "p50"}, map[string]float64{stock: 0.15, "unbound": 0.15}},
	{"one in flight: p99", cellKey{"W1", "one", "p99"}, map[string]float64{stock: 0.15, "unbound": 0.15}},
	{"1,000 a second: p99.9", cellKey{"W1", "1k", "p99.9"}, map[string]float64{stock: 0.10}},
	{"10,000 a second: p99.9", cellKey{"W1", "10k", "p99.9"}, map[string]float64{stock: 0.10}},
	{"1,000 a second: whole node's CPU per query", cellKey{"W1", "1k", "node"}, map[string]float64{stock: 0.25}},
	{"10,000 a second: whole node's CPU per query", cellKey{"W1", "10k", "node"}, map[string]float64{stock: 0.25}},
}

// kernelShares are the workloads of whose hits the kernel is to answer at least kernelShare percent.
var kernelShares = []string{"W1", "W2", "W5", "W6"}

const kernelShare = 95

// kernelTable holds hits in the kernel to what they are to be; "" where they were not measured.
func (r *report) kernelTable() string {
	if !slices.Contains(r.servers(), inKernel) {
		return ""
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("| figure | %s | to %s | bar | to unbound | bar |\n| --- | ---: | ---: | ---: | ---: | ---: |", inKernel, stock)
	for _, bar := range bars {
		f := figureTexts[bar.key.Figure]
		line := fmt.Sprintf("| %s | %s |", bar.text, value(r.median(bar.key, inKernel), f))
		for _, s := range []string{stock, "unbound"} {
			limit, held := bar.limits[s]
			e := r.ratio(bar.key, inKernel, s)
			if e.N == 0 {
				line += " | |"
				continue
			}
			line += fmt.Sprintf(" %s |", e)
			if held {
				line += " " + barText(e.Median, limit, f.more)
			}
			line += " |"
		}
		p("%s", line)
	}
	p("\n| figure | %s | bar |\n| --- | ---: | ---: |", inKernel)
	for _, name := range kernelShares {
		if share := r.median(cellKey{name, "full", "kernel"}, inKernel); !math.IsNaN(share) {
			p("| %s, full speed: hits that the kernel answered, in percent | %.1f | %s |", name, share, barText(share, kernelShare, true))
		}
	}
	for _, w := range r.Rows {
		switch {
		case w.Part != kernelPart:
		case w.Than == "":
			p("| program's time per hit, in µs | %s | %s |", w.Ours, barText(w.Ours.Median, w.Limit, false))
		default:
			p("| program's time per hit, %s to %s | %s | %s |", w.Subject, w.Than, w.Ratio, barText(w.Ratio.Median, w.Limit, false))
		}
	}
	return b.String()
}

// barText is a bar and whether a median meets it.
func barText(median, limit float64, more bool) string {
	sign, met := "≤", median <= limit
	if more {
		sign, met = "≥", median >= limit
	}
	if met {
		return fmt.Sprintf("%s %g: met", sign, limit)
	}
	return fmt.Sprintf("%s %g: missed", sign, limit)
}
