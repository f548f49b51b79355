// Command benefit shows what a cache on the node is good for, as KEP-1024 requires of one: the same lookups from a pod with neardns
// and from a pod without it, side by side, under the race of parallel A and AAAA queries that the KEP names, and with UDP
// packets lost on the way to kube-dns. It prints a table and a plot, and writes bin/benefit.md and bin/benefit.svg. It is what
// `make benefit` runs.
//
// It sends packets only in network namespaces that it makes, and changes nothing of the machine's own network. It ends by itself
// or at an interrupt, and leaves nothing behind.
//
// Failure policy: what cannot be measured ends the run with the reason and the agent's log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// loadVerb makes this program the load generator, in a pod.
const loadVerb = "load"

func main() {
	if called, err := verbs(os.Args); called {
		exit(err)
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds, 1 to 20")
	flag.DurationVar(&o.length, "length", 6*time.Second, "of one run, 1 s to 20 s")
	flag.IntVar(&o.rate, "rate", 500, "lookups a second, 1 to 1000")
	flag.IntVar(&o.loss, "loss", 2, "percent of the UDP packets to kube-dns that are lost in the second case")
	flag.DurationVar(&o.away, "away", time.Millisecond, "how far kube-dns is")
	flag.StringVar(&o.out, "out", "bin", "folder for benefit.md and benefit.svg")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := o.run(ctx, os.Stdout, os.Stderr)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "benefit:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// verbs runs what this program is when it calls itself, and reports whether it was called so.
func verbs(args []string) (bool, error) {
	if len(args) == 2 && args[1] == loadVerb {
		return true, load.Generate(os.Stdin, os.Stdout)
	}
	return false, nil
}

type options struct {
	rounds int
	length time.Duration
	rate   int
	loss   int
	away   time.Duration
	out    string
	root   string // the repository
}

func (o *options) check() error {
	switch {
	case o.rounds < 1 || o.rounds > 20:
		return fmt.Errorf("-rounds %d is not 1 to 20", o.rounds)
	case o.length < time.Second || o.length > 20*time.Second:
		return fmt.Errorf("-length %v is not 1 s to 20 s", o.length)
	case o.rate < 1 || o.rate > 1000:
		return fmt.Errorf("-rate %d is not 1 to 1000", o.rate)
	case o.loss < 1 || o.loss > 50:
		return fmt.Errorf("-loss %d is not 1 to 50", o.loss)
	case o.away < 0 || o.away > 100*time.Millisecond:
		return fmt.Errorf("-away %v is not 0 to 100 ms", o.away)
	}
	for _, name := range []string{"neardns", "neardns-agent", "tools/ptp", "tools/host-local"} {
		if _, err := os.Stat(o.bin(name)); err != nil {
			return fmt.Errorf("%w: `make build tools` makes it", err)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: network namespaces cannot be made otherwise")
	}
	return nil
}

func (o *options) bin(name string) string { return filepath.Join(o.root, "bin", name) }

func (o *options) run(ctx context.Context, out, progress io.Writer) (err error) {
	if o.root, err = filepath.Abs("."); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	r := report{
		Taken: time.Now().UTC(), Machine: machine(), Rounds: o.rounds, Rate: o.rate, Length: o.length, Away: o.away, Loss: o.loss,
	}
	err = testutil.Program(ctx, progress, func(t testutil.TB) {
		r.Cases = measure(t, o, progress)
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n%s", r.markdown(), r.plot())
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	table, picture := filepath.Join(o.out, "benefit.md"), filepath.Join(o.out, "benefit.svg")
	if err := errors.Join(os.WriteFile(table, []byte(r.markdown()), 0o644), os.WriteFile(picture, []byte(r.svg()), 0o644)); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nwritten: %s, %s\n", table, picture)
	return nil
}

func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // then the release stays empty
	return fmt.Sprintf("%d CPUs, Linux %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]))
}
