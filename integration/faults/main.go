// Command faults breaks a node's DNS cache in every way that its users fear, under load, and counts what that costs pods:
// neardns beside a stock CoreDNS that is set up as NodeLocal DNSCache does it, same load, same faults, in turn. It is what
// `make faults` runs; -list names the faults.
//
// It sends packets only in network namespaces that it makes, and changes nothing of the machine's own network. It ends
// after -rounds rounds or at an interrupt, and leaves nothing behind.
//
// Failure policy: what cannot be measured (a server that does not come back, a load that does not begin) ends the run with
// the reason and the server's log, after the table of what was found so far. Limits are judged with -check alone: on a busy
// machine a figure may be beyond one by chance. The few that are promised are always.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// loadVerb makes this program the load generator.
const loadVerb = "load"

// verbs runs what this program is when it calls itself, and tells whether it was called so.
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

type options struct {
	only     string
	rounds   int
	short    bool
	check    bool
	list     bool
	json     string
	soak     bool
	duration time.Duration
	seed     uint64
	alone    bool
	lease    lease
	root     string // the repository
}

func (o *options) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.only, "only", "", "faults to try, by name, with commas between them (default: all)")
	fs.IntVar(&o.rounds, "rounds", 5, "interleaved rounds, 1 to 20")
	fs.BoolVar(&o.short, "short", false, "one round of a few faults: about a minute")
	fs.BoolVar(&o.check, "check", false, "exit with 1 where a median is beyond its limit, or an answer was wrong")
	fs.BoolVar(&o.list, "list", false, "list the faults and their limits, and try none")
	fs.StringVar(&o.json, "json", "bin/faults.json", "file for all rounds; the table goes beside it, as .md")
	fs.BoolVar(&o.alone, "alone", false, "without the stock CoreDNS")
	fs.DurationVar(&o.lease.renew, "renew", 0, "of the lease, in place of the agent's default")
	fs.DurationVar(&o.lease.lifetime, "lifetime", 0, "of the lease, in place of the agent's default: what a hang costs, and how often a busy agent loses it")
	fs.Func("backend", "of our rules: nftables, iptables-nft or iptables-legacy (default: nftables)", func(name string) (err error) {
		if name == "iptables" {
			name = string(iptables.NFT)
		}
		o.lease.rules, err = rules.Named(name)
		return err
	})
	fs.BoolVar(&o.soak, "soak", false, "faults at random times on ours alone, then a look for leaks")
	fs.DurationVar(&o.duration, "duration", 10*time.Minute, "of the soak, at most 24 h")
	fs.Uint64Var(&o.seed, "seed", 0, "of the soak's random times (default: another each time)")
}

// chosen are the faults that the flags name.
func (o *options) chosen() ([]fault, error) {
	all := allFaults()
	if o.lease.rules.Recorded() != "" {
		all = byIptables(all)
	}
	if o.only == "" {
		if o.short {
			all = slices.DeleteFunc(all, func(f fault) bool { return !f.short })
		}
		return all, nil
	}
	var out []fault
	for name := range strings.SplitSeq(o.only, ",") {
		at := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
		if at < 0 {
			var names []string
			for _, f := range all {
				names = append(names, f.name)
			}
			return nil, fmt.Errorf("-only: %q is none of %s", name, strings.Join(names, ", "))
		}
		out = append(out, all[at])
	}
	return out, nil
}

func (o *options) run(ctx context.Context, out, progress io.Writer) error {
	faults, err := o.chosen()
	if err != nil {
		return err
	}
	if o.list {
		for _, f := range faults {
			_, _ = fmt.Fprintf(out, "%-16s %s; at most: %s\n", f.name, f.title, f.limit)
		}
		return nil
	}
	if o.rounds < 1 || o.rounds > 20 {
		return fmt.Errorf("-rounds: %d is not 1 to 20", o.rounds)
	}
	if o.duration <= 0 || o.duration > 24*time.Hour {
		return fmt.Errorf("-duration: %v is not up to 24 h", o.duration)
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make network namespaces and packet rules")
	}
	if o.root, err = os.Getwd(); err != nil {
		return err
	}
	for _, name := range programs {
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
	return err
}

// command is the make target that does the same.
func (o *options) command() string {
	words := []string{"make faults"}
	if o.only != "" {
		words = append(words, "ONLY="+o.only)
	}
	if o.short {
		words = append(words, "SHORT=1")
	}
	if o.alone {
		words = append(words, "ALONE=1")
	}
	if o.lease.rules.Recorded() != "" {
		words = append(words, "BACKEND="+o.lease.rules.String())
	}
	if o.lease.renew > 0 {
		words = append(words, fmt.Sprintf("RENEW=%v", o.lease.renew))
	}
	if o.lease.lifetime > 0 {
		words = append(words, fmt.Sprintf("LIFETIME=%v", o.lease.lifetime))
	}
	if o.rounds != 5 {
		words = append(words, fmt.Sprintf("ROUNDS=%d", o.rounds))
	}
	return strings.Join(words, " ")
}

func isSet(name string) (set bool) {
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

// programs of bin/ that are run.
var programs = []string{"neardns", "neardns-agent", "tools/coredns", "tools/ptp", "tools/host-local"}

func (o *options) bin(name string) string { return filepath.Join(o.root, "bin", name) }

// rounded runs every fault on both stands, round by round, into the report.
func (o *options) rounded(t testutil.TB, faults []fault, r *report) {
	dir := scratch(t)
	begun := time.Now()
	for _, f := range faults {
		w := &row{Fault: f.name, Title: f.title, Limit: f.limit.String(), NoStock: f.noStock, limit: f.limit, promised: f.promised}
		if f.needs != nil {
			w.NoOurs = f.needs(t, o.bin)
		}
		r.Rows = append(r.Rows, w)
	}
	ours := newOurs(t, o.bin, dir, o.lease)
	stands := []*stand{ours}
	if !o.alone {
		stands = append(stands, newStock(t, o.bin, dir))
	}
	for round := range o.rounds {
		for k, f := range faults {
			w := r.Rows[k]
			if w.NoOurs != "" {
				continue
			}
			for _, s := range stands {
				if s != ours && f.noStock != "" {
					continue
				}
				got := settled(s, f)
				t.Logf("%4.0f s  round %d/%d  %-15s %-5s %s", time.Since(begun).Seconds(), round+1, o.rounds, f.name, s.name, got.progress())
				if s == ours {
					w.Ours = append(w.Ours, got)
				} else {
					w.Stock = append(w.Stock, got)
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
		s.restore()
		got := try(s, f, max(f.lead, lead))
		why := ""
		switch {
		case again == repeats:
		case got.Late > held:
			why = "the load generator was held up for " + short(got.Late)
		case got.Died > held:
			why = "the killed server took " + short(got.Died) + " to end"
		case f.limit.kept > 0 && got.Kept < 0:
			why = "nothing came from the cache before it, the server having lost its lease"
		}
		if why == "" {
			return got
		}
		s.t.Logf("        %s, %s: %s: once more", f.name, s.name, why)
	}
}

// machine describes where the figures are from.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d CPUs (%s), Linux %s, %s", runtime.NumCPU(), runtime.GOARCH, unix.ByteSliceToString(u.Release[:]), runtime.Version())
}
