// Command vm runs the built tests on another kernel: a Debian kernel in qemu, by default by software emulation, with this machine's
// root folder as its own, read-only, or of another architecture with one made of Debian's packages. It is what `make test-vm` runs.
//
// It owns the machine: kernel and modules out of Debian's package (unpacked, never installed), an initramfs of this very
// program, and the list of tests, which several guests share. It must never change this machine: the guest has an overlay in memory
// over the root folder and no network, and what is built and fetched stays in bin/vm, or in the folder of -dir.
//
// It prints the tests' events, as `go test -json` does, for integration/tools/testrun to read. A guest that dies or is
// late ends its test as a failure, with the end of its console, which is kept whole in bin/vm.
//
// Run as process 1, it is the guest's init.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/compat"
)

type options struct {
	arch    string // by Go's name
	kernel  string // the series: 5.10, 6.1, 6.12
	accel   string
	cpu     string // qemu's name of the model; empty: by the accelerator
	guests  int
	cpus    int // of each
	memory  int // of each, in MiB
	timeout time.Duration
	only    string // regular expression on packages
	run     string // instead of the plan's tests
	dir     string // where everything is kept

	backends string
	list     bool
	fetch    bool
}

func main() {
	if os.Getpid() == 1 {
		initGuest()
	}
	if len(os.Args) > 1 && os.Args[1] == guestCommand {
		os.Exit(runGuest(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.kernel, "kernel", "6.1", "the kernel's series, as Debian has it: "+strings.Join(series(), ", "))
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "the guests' architecture: amd64 or arm64")
	flag.StringVar(&o.accel, "accel", "tcg,thread=multi", "qemu's accelerator; kvm where the machine lends it")
	flag.StringVar(&o.cpu, "cpu", "", "the guests' model of CPU, as qemu names it; a plain one where it is emulated, else this machine's")
	flag.IntVar(&o.guests, "guests", 0, "guests that share the tests; 0: as many as CPUs, four at most, and one of another architecture")
	flag.IntVar(&o.cpus, "cpus", 1, "a guest's CPUs; under emulation a second one costs more, by what the two wait for one another, than it does")
	flag.IntVar(&o.memory, "memory", 2048, "a guest's memory in MiB")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "limit for the guests, from their start to their end")
	flag.StringVar(&o.only, "only", "", "regular expression: run these packages of the plan only")
	flag.StringVar(&o.run, "run", "", "run these tests (as go test's -run) in place of the plan's")
	flag.StringVar(&o.dir, "dir", "bin/vm", "folder for kernels and built tests; it must be below the working folder")
	flag.StringVar(&o.backends, "backends", "nftables,iptables-nft,iptables-legacy", "back ends whose cells are run")
	flag.BoolVar(&o.list, "list", false, "print what would be run, and end")
	flag.BoolVar(&o.fetch, "fetch", false, "fetch the kernel, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runHost(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// runHost does the host's part, from the kernel's package to the guest's end.
func runHost(ctx context.Context, o options) error {
	a, err := findArch(o.arch)
	if err != nil {
		return err
	}
	jobs, err := plan(o)
	if err != nil {
		return err
	}
	if o.list {
		for _, j := range jobs {
			fmt.Fprintf(os.Stdout, "%s -run '%s'\n", j.Package, j.Run)
		}
		return nil
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	lent := "/"
	if o.arch != runtime.GOARCH {
		dir = filepath.Join(dir, o.arch)
		lent = filepath.Join(dir, "root")
		if err := makeRoot(ctx, lent, o.arch); err != nil {
			return fmt.Errorf("make a root folder for %s: %w", o.arch, err)
		}
	}
	k, err := fetchKernel(ctx, filepath.Join(dir, o.kernel), o.kernel, o.arch)
	if err != nil || o.fetch {
		return err
	}
	if err := buildTests(ctx, root, dir, o.arch, jobs); err != nil {
		return err
	}
	initramfs := filepath.Join(k.dir, "initramfs")
	if err := writeInitramfs(initramfs, filepath.Join(programsDir(dir), initProgram), k, guestConfig{
		Root: root, Modules: k.modulesDir(), Programs: programsDir(dir), Tests: testsDir(dir), Timeout: o.timeout.String(), Slowness: a.slowness,
		Backends: o.backends, Commit: os.Getenv(compat.EnvCommit),
	}); err != nil {
		return err
	}
	share := &shares{rest: jobs, to: os.Stdout}
	// The tables are of amd64: what this lane shows of another architecture is its own result.
	if to := os.Getenv(compat.Env); to != "" && o.arch == "amd64" {
		records, err := openRecords(to)
		if err != nil {
			return err
		}
		defer records.Close() //nolint:errcheck // a lost record is seen by the table's check
		share.records = records
	}
	guests := min(cmp.Or(o.guests, min(runtime.NumCPU(), a.guests)), len(jobs))
	fmt.Fprintf(os.Stderr, "tests run on Linux %s (Debian %s) in %d guests of qemu, accelerator %s; consoles in %s\n",
		k.release, k.version, guests, o.accel, k.dir)
	begun := time.Now()
	err = runGuests(ctx, machine{options: o, arch: a, kernel: k, root: lent, module: root, initramfs: initramfs}, guests, share)
	fmt.Fprintf(os.Stderr, "the guests took %v\n", time.Since(begun).Round(time.Second))
	if err == nil && share.ended < len(jobs) {
		err = fmt.Errorf("%d of %d jobs were run", share.ended, len(jobs))
	}
	return err
}

// runGuests has guests share the jobs. One that fails does not keep the others from going on.
func runGuests(ctx context.Context, m machine, guests int, share *shares) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.options.timeout, fmt.Errorf("the guests did not end within %v", m.options.timeout))
	defer cancel()
	errs := make([]error, guests)
	var running sync.WaitGroup
	for i := range guests {
		m.console = filepath.Join(m.kernel.dir, fmt.Sprintf("console-%d.log", i+1))
		one := m
		running.Go(func() {
			if err := one.run(ctx, share); err != nil {
				errs[i] = fmt.Errorf("guest %d: %w", i+1, err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
