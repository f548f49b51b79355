// Command bench measures what neardns costs, beside what does the same work: the plugin's calls beside the bare netlink
// transaction and the reference portmap plugin, the agent beside a stock CoreDNS set up as NodeLocal DNSCache. It is what
// `make bench` runs. Everything compared is measured in turn, round by round, on one machine; see paired for the sums.
//
// It sends packets only to addresses in network namespaces that it makes, and changes nothing of the machine's own network.
//
// Failure policy: a measurement that cannot be trusted (answers lost or wrong, a server gone) ends the run with the reason
// and no report. Limits are judged with -check alone: on a busy machine a figure may be beyond one by chance.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/bench/paired"
	"github.com/neardns/neardns/pkg/testutil"
)

// loadVerb makes this program the load generator.
const loadVerb = "load"

func main() {
	if len(os.Args) > 1 && os.Args[1] == loadVerb {
		if err := generate(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	var parts string
	flag.BoolVar(&b.short, "short", false, "measure shorter in each round: about two minutes in all")
	flag.IntVar(&b.rounds, "rounds", paired.Rounds, "interleaved rounds")
	flag.StringVar(&parts, "parts", strings.Join(allParts, ","), "what to measure")
	check := flag.Bool("check", false, "exit with 1 where a median is beyond its limit")
	flag.Parse()
	b.parts = strings.Split(parts, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := b.main(ctx)
	stop()
	if err == nil && *check {
		if bad := b.exceeded(); len(bad) > 0 {
			err = errors.New("beyond its limit:\n  " + strings.Join(bad, "\n  "))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// programs of bin/ that are measured.
var programs = []string{"neardns", "neardns-agent", "tools/coredns", "tools/portmap"}

// allParts in the order of the report.
var allParts = []string{"plugin", "memory", "query"}

// bench is one run.
type bench struct {
	report
	t      testutil.TB
	short  bool
	rounds int
	parts  []string
	root   string // the repository
	dir    string
}

func (b *bench) main(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules")
	}
	for _, p := range b.parts {
		if !slices.Contains(allParts, p) {
			return fmt.Errorf("-parts: %q is none of %s", p, strings.Join(allParts, ", "))
		}
	}
	var err error
	if b.root, err = os.Getwd(); err != nil {
		return err
	}
	for _, name := range programs {
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
	if slices.Contains(b.parts, "memory") || slices.Contains(b.parts, "query") {
		ours, stock := ourStand(b), stockStand(b)
		if slices.Contains(b.parts, "memory") {
			b.memory(ours, stock)
		}
		if slices.Contains(b.parts, "query") {
			b.query(ours, stock)
		}
	}
	t.Logf("took %v", time.Since(begun).Round(time.Second))
}

// memoryFolder is where the runtime's state is on a real node: a file system in memory.
func memoryFolder() string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return ""
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%v", err)
	}
}

func (b *bench) bin(name string) string { return filepath.Join(b.root, "bin", name) }

func (b *bench) folder(name string) string {
	dir := filepath.Join(b.dir, name)
	b.must(os.MkdirAll(dir, 0o755))
	return dir
}

// long scales how long something is measured in one round.
func (b *bench) long(d time.Duration) time.Duration {
	if b.short {
		return d / 2
	}
	return d
}

// build compiles a program of the repository as the products are compiled.
func (b *bench) build(path string) string {
	out := filepath.Join(b.dir, filepath.Base(path))
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, path)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("build %s: %v\n%s", path, err, text)
	}
	return out
}

// machine describes where the figures are from.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d CPUs (%s), Linux %s, %s", runtime.NumCPU(), runtime.GOARCH, unix.ByteSliceToString(u.Release[:]), runtime.Version())
}
