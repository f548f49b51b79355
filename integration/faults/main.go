// Command faults breaks a node's DNS cache in every way that its users fear, under load, and counts what that costs pods:
// neardns next to a stock CoreDNS that is set up as NodeLocal DNSCache does it, unbound in the same place, and a node without a cache; same
// load, same faults, in turn. It is what `make faults` runs; -list names the faults.
//
// It sends packets only in network namespaces that it makes, and changes nothing of the machine's own network. It ends
// after -rounds rounds or at an interrupt, and leaves nothing behind.
//
// Failure policy: what cannot be measured (a server that does not come back, a load that does not begin) ends the run with
// the reason and the server's log, after the table of what was found so far. Limits are judged with -check alone, because on a
// busy machine a figure may be beyond one by chance; the few that are promised are judged always.
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
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// loadVerb makes this program the load generator.
const loadVerb = "load"

// verbs runs what this program is when it calls itself, and reports whether it was called so.
func verbs(args []string) (bool, error) {
	switch {
	case len(args) != 2:
	case args[1] == loadVerb:
		return true, load.Generate(os.Stdin, os.Stdout)
	case args[1] == ballastVerb:
		ballast()
		return true, nil
	}
	return false, nil
}

func main() {
	called, err := verbs(os.Args)
	if !called {
		var o options
		o.flags(flag.CommandLine)
		flag.Parse()
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = o.run(ctx, os.Stdout, os.Stderr)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context, out, progress io.Writer) error {
	faults, listed, err := o.ready(out)
	if err != nil || listed {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules")
	}
	if o.lease.kernel != kernelOff {
		if err := ownBPF(); err != nil {
			return fmt.Errorf("mount a BPF file system, or run it with -kernel off: %w", err)
		}
	}
	if o.root, err = os.Getwd(); err != nil {
		return err
	}
	for _, name := range binaries {
		if _, err := os.Stat(o.bin(name)); err != nil {
			return fmt.Errorf("no bin/%s here: %w", name, errMissing)
		}
	}
	if o.soak {
		return testutil.Program(ctx, progress, o.soakOurs)
	}
	if o.short && !isSet("rounds") {
		o.rounds = 1
	}
	r := &report{Taken: time.Now().UTC(), Machine: machine(), Rounds: o.rounds, Command: o.command()}
	err = testutil.Program(ctx, progress, func(t testutil.TB) { o.rounded(t, faults, r) })
	r.judge()
	if len(r.Rows) > 0 {
		var text strings.Builder
		r.markdown(&text)
		_, _ = io.WriteString(out, text.String())
		beside := strings.TrimSuffix(o.json, filepath.Ext(o.json)) + ".md"
		err = errors.Join(err, r.save(o.json), os.WriteFile(beside, []byte(text.String()), 0o644))
	}
	if bad := r.exceeded(o.check); err == nil && len(bad) > 0 {
		err = errors.New("beyond its limit:\n  " + strings.Join(bad, "\n  "))
	}
	if err == nil && r.Command == drawnBy && !o.check {
		err = compat.Draw(page, "faults", r.table())
	}
	return err
}

// ready checks the options and lists the faults if that is all that the options want.
func (o *options) ready(out io.Writer) (faults []fault, listed bool, err error) {
	faults, err = o.chosen()
	if err != nil {
		return nil, false, err
	}
	if o.list {
		for _, f := range faults {
			_, _ = fmt.Fprintf(out, "%-16s %s; at most: %s\n", f.name, f.title, f.limit)
		}
		return nil, true, nil
	}
	if o.rounds < 1 || o.rounds > 20 {
		return nil, false, fmt.Errorf("-rounds: %d is not 1 to 20", o.rounds)
	}
	if o.duration <= 0 || o.duration > 24*time.Hour {
		return nil, false, fmt.Errorf("-duration: %v is not up to 24 h", o.duration)
	}
	return faults, false, nil
}

// rounded runs every fault on all stands, round by round, into the report.
func (o *options) rounded(t testutil.TB, faults []fault, r *report) {
	dir := scratch(t)
	begun := time.Now()
	for _, f := range faults {
		w := &row{Fault: f.name, Title: f.title, Limit: f.limit.String(), limit: f.limit, promised: f.promised}
		w.Others, w.Not = map[string][]outcome{}, map[string]string{}
		for _, name := range others() {
			if why := f.without(name); why != "" {
				w.Not[name] = why
			}
		}
		if needs := deeds()[f.name].needs; needs != nil {
			w.Not["ours"] = needs(t, o.bin)
		}
		r.Rows = append(r.Rows, w)
	}
	ours := newOurs(t, o.bin, dir, o.lease)
	stands := []*stand{ours}
	if !o.alone {
		stands = append(stands, newStock(t, o.bin, dir), newUnbound(t, o.bin, dir), newBare(t, o.bin, dir))
	}
	for round := range o.rounds {
		for k, f := range faults {
			w := r.Rows[k]
			if w.Not["ours"] != "" {
				continue
			}
			for _, s := range stands {
				if w.Not[s.name] != "" || round >= roundsOf(s.name) {
					continue
				}
				got := settled(s, f)
				t.Logf("%4.0f s  round %d/%d  %-15s %-7s %s", time.Since(begun).Seconds(), round+1, o.rounds, f.name, s.name, got.progress())
				if s == ours {
					w.Ours = append(w.Ours, got)
				} else {
					w.Others[s.name] = append(w.Others[s.name], got)
				}
			}
		}
	}
}

// held is how late a load generator may be, and how long the kernel may take to end a killed server. Beyond it the machine did
// something else for so long that answers may have been there unread: nothing is known of the server, and the run is repeated.
const held, repeats = 300 * time.Millisecond, 2

func settled(s *stand, f fault) outcome {
	for again := 0; ; again++ {
		s.restore(f.limit.kept > 0)
		before := s.inKernel()
		got := try(s, f, max(f.lead, lead))
		got.InKernel = s.inKernel() - before
		why := ""
		switch {
		case again == repeats:
		case got.Late > held:
			why = "the load generator was held up for " + short(got.Late)
		case got.Died > held:
			why = "the killed server took " + short(got.Died) + " to end"
		}
		if why == "" {
			return got
		}
		s.t.Logf("        %s, %s: %s: once more", f.name, s.name, why)
	}
}
