package main

import (
	"fmt"
	"os"
	"path/filepath"
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
	kernelNames       = 4_000 // the agent offloads 4,096 answers at most
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

// warm sends every query of a load once, and where the kernel is to answer, until the agent has offloaded their answers.
func (b *bench) warm(s *stand, l generator.Load) {
	s.ask(l)
	if s.name != inKernel {
		return
	}
	// The agent offloads an answer at its second hit, and skips it while it has too much to offload: it is offloaded by the next time.
	for range 3 {
		s.ask(l)
		b.rest(20 * time.Millisecond)
	}
}

// inKernel reports what is missing until the kernel answers all of a stand's pods.
func (s *stand) inKernel() error {
	pods, err := s.metric(`neardns_kernel_pods{state="answered"}`)
	if err == nil && int(pods) != s.steered {
		err = fmt.Errorf("the kernel answers %v of %d pods", pods, s.steered)
	}
	return err
}

// kernelHits is how many queries the kernel has answered so far.
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
