package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

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
	fs.BoolVar(&o.short, "short", false, "one round of a few faults: two minutes")
	fs.BoolVar(&o.check, "check", false, "exit with 1 where a median is beyond its limit, or an answer was wrong")
	fs.BoolVar(&o.list, "list", false, "list the faults and their limits, and try none")
	fs.StringVar(&o.json, "json", "bin/faults.json", "file for all rounds; the table goes beside it, as .md")
	fs.BoolVar(&o.alone, "alone", false, "without the others: a stock CoreDNS, unbound and a node without a cache")
	fs.DurationVar(&o.lease.renew, "renew", 0, "of the lease, in place of the agent's default")
	fs.DurationVar(&o.lease.lifetime, "lifetime", 0, "of the lease, in place of the agent's default: what a hang costs, and how often a busy agent loses it")
	fs.Func("backend", "of our rules: nftables, iptables-nft or iptables-legacy (default: nftables)", func(name string) (err error) {
		if name == "iptables" {
			name = string(iptables.NFT)
		}
		o.lease.rules, err = rules.Named(name)
		return err
	})
	fs.StringVar(&o.lease.kernel, "kernel", "", "kernelHits.mode in place of the default one, such as off")
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
	if o.lease.kernel != "" {
		words = append(words, "KERNEL="+o.lease.kernel)
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

// binaries of bin/ that are run.
var binaries = []string{"neardns", "neardns-agent", "tools/coredns", "tools/ptp", "tools/host-local"}

func (o *options) bin(name string) string { return filepath.Join(o.root, "bin", name) }

// machine describes where the figures are from.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d CPUs (%s), Linux %s, %s", runtime.NumCPU(), runtime.GOARCH, unix.ByteSliceToString(u.Release[:]), runtime.Version())
}
