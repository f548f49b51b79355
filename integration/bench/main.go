// Command bench measures what neardns costs, next to what does the same work: the plugin's calls next to the bare netlink
// transaction and the reference portmap plugin; the agent next to a stock CoreDNS set up as NodeLocal DNSCache and next to the other
// DNS servers that an operator may put there (package peers), each under the workloads W1 to W14 (package workload) by a load
// generator (package generator), and next to a node without a cache. It is what `make bench` runs. Everything compared is measured in
// turn, round by round, on one machine; see paired for the sums.
//
// It sends packets only to addresses in network namespaces that it makes, and changes nothing of the machine's own network.
//
// Failure policy: a measurement that cannot be trusted (answers lost or wrong, a server gone) ends the run with the reason
// and no report. Limits, and the committed result, are judged with -check alone: on a busy machine a figure may be beyond one by
// chance. A busy machine is waited for, for a while, and reported.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/pkg/testutil"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == generator.Verb {
		exit(generator.Main(os.Stdin, os.Stdout))
	}
	b := &bench{}
	var parts, with, workloads string
	flag.BoolVar(&b.short, "short", false, "measure shorter in each round: ten minutes in all")
	flag.IntVar(&b.rounds, "rounds", paired.Rounds, "interleaved rounds")
	flag.StringVar(&parts, "parts", strings.Join(allParts, ","), "what to measure")
	flag.StringVar(&with, "with", strings.Join(allServers(), ","), "the servers to measure neardns beside")
	flag.StringVar(&workloads, "workloads", strings.Join(workload.Names, ","), "what to ask")
	check := flag.Bool("check", false, "exit with 1 where a median is beyond its limit, or worse than in the committed result")
	kept := flag.Bool("keep", false, "measure nothing: make the last run's result the committed one, and draw the documents from it")
	flag.Parse()
	if *kept {
		exit(keep("."))
	}
	b.parts, b.with, b.workloads = strings.Split(parts, ","), strings.Split(with, ","), strings.Split(workloads, ",")
	b.names, b.patience = memoryNames, 30*time.Minute
	if b.short {
		b.patience = 20 * time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := b.main(ctx)
	stop()
	if err == nil && *check {
		err = b.check()
	}
	exit(err)
}

// needed are the programs of bin/ that are measured.
var needed = []string{"neardns", "neardns-agent", "tools/coredns", "tools/portmap"}

// allParts in the order of the report.
var allParts = []string{"plugin", "memory", "query", "dnsperf", "growth"}

// bench is one run.
type bench struct {
	report
	t         testutil.TB
	short     bool
	rounds    int
	parts     []string
	with      []string
	workloads []string
	names     int           // that fill a cache
	patience  time.Duration // with a machine that is not quiet, in all
	root      string        // the repository
	dir       string
	stands    []*stand
	softIRQ   []int // the kernel's threads
	node      int   // how many of what a run watches are the node's work for one server
}

func (b *bench) options() error {
	for _, o := range []struct {
		flag       string
		given, all []string
	}{{"-parts", b.parts, allParts}, {"-with", b.with, allServers()}, {"-workloads", b.workloads, workload.Names}} {
		for _, p := range o.given {
			if !slices.Contains(o.all, p) {
				return fmt.Errorf("%s: %q is none of %s", o.flag, p, strings.Join(o.all, ", "))
			}
		}
	}
	if b.rounds < 1 || b.rounds > 100 {
		return fmt.Errorf("-rounds %d is not 1 to 100", b.rounds)
	}
	if runtime.NumCPU() < 2 {
		return errors.New("needs two CPUs: one for the server, one for the client")
	}
	return nil
}

func (b *bench) main(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules")
	}
	if err := b.options(); err != nil {
		return err
	}
	var err error
	if b.root, err = os.Getwd(); err != nil {
		return err
	}
	for _, name := range needed {
		if _, err := os.Stat(b.bin(name)); err != nil {
			return fmt.Errorf("no bin/%s here: %w", name, errMissing)
		}
	}
	if err := testutil.Program(ctx, os.Stderr, b.run); err != nil {
		return err
	}
	b.markdown(os.Stdout)
	return b.save(filepath.Join(b.root, "bin"))
}

func (b *bench) run(t testutil.TB) {
	b.t, b.Taken, b.Short, b.Machine = t, time.Now().UTC(), b.short, machine()
	dir, err := os.MkdirTemp(memoryFolder(), "neardns-bench-")
	b.must(err)
	b.dir = dir
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	begun := time.Now()
	if slices.Contains(b.parts, "plugin") {
		b.plugin()
	}
	if slices.ContainsFunc(b.parts, func(p string) bool { return p != "plugin" }) {
		b.serve()
	}
	b.Noise.sumUp()
	t.Logf("took %v", time.Since(begun).Round(time.Second))
}

// serve starts all servers, each on a node of its own, and measures them.
func (b *bench) serve() {
	var err error
	b.softIRQ, err = procstat.SoftIRQ()
	b.must(err)
	b.stands = append(b.stands, ourStand(b, ours))
	if slices.Contains(b.with, kernelOption) {
		b.stands = append(b.stands, ourStand(b, inKernel))
	}
	if slices.Contains(b.with, plainOption) {
		b.stands = append(b.stands, ourStand(b, plain))
	}
	if slices.Contains(b.with, stock) {
		b.stands = append(b.stands, stockStand(b))
	}
	for _, p := range peers.All() {
		if slices.Contains(b.with, p.Name) {
			b.stands = append(b.stands, peerStand(b, p))
		}
	}
	if slices.Contains(b.with, bareOption) {
		b.stands = append(b.stands, bareStand(b))
	}
	for _, s := range b.stands {
		b.Servers = append(b.Servers, version{s.name, s.version})
	}
	b.t.Logf("%d servers are up", len(b.stands))
	if slices.Contains(b.parts, "memory") {
		b.memory(caches(b.stands))
	}
	if slices.Contains(b.parts, "query") {
		b.query(b.stands)
	}
	if slices.Contains(b.parts, "growth") {
		for _, s := range b.stands {
			if s.name == ours || s.name == stock {
				b.growth(s)
			}
			if s.name == inKernel {
				b.kernelGrowth(s)
			}
		}
	}
}
