package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/conflist"
)

const (
	lockTimeout = time.Minute
	// maxTries is how often the installer tries to write a list that another program changes between its read and its write. A network's own
	// installer writes a few times at its start.
	maxTries = 5
)

type install struct {
	folders
	nodeConfig, entryFile string
	plugin, agent         string
	kubeletTo             string // the agent's state folder, where writeKubelet writes the kubelet's settings; "": not written
	wait                  time.Duration
	// gentle: only add what is missing. Keep a binary that runs, whatever its release, and any entry of neardns that is not the first
	// plugin.
	gentle   bool
	anyPlace bool // accept an entry that is right but not last in the list
	// persistDir is the agent's folder with the result of its last fallback check (see sayVerified).
	persistDir string
}

func (in install) run(ctx context.Context) error {
	o, err := in.pass(ctx)
	if err == nil {
		in.sayVerified(o.entry)
	}
	return err
}

// outcome is what one pass changed, or what it would change in a dry run.
type outcome struct {
	entry  []byte
	binary bool
	list   bool
	change // of the network configuration that has the entry, or gets it
}

// pass makes the entry, writes the kubelet's settings, and brings the plugin's binary and the conflist up to date, once.
func (in install) pass(ctx context.Context) (outcome, error) {
	entry, err := in.entry(ctx)
	if err != nil {
		return outcome{}, err
	}
	if err := in.writeKubelet(ctx); err != nil {
		return outcome{}, err
	}
	return in.place(ctx, entry)
}

func (in install) place(ctx context.Context, entry []byte) (outcome, error) {
	// Find the faults that can be found before the binary or the list is written.
	if err := in.await(ctx, entry); err != nil {
		return outcome{}, err
	}
	if !in.dryRun {
		unlock, err := lockAndSweep(ctx, in.bin, in.conf)
		if err != nil {
			return outcome{}, err
		}
		defer unlock()
	}
	o := outcome{entry: entry}
	var err error
	if in.gentle && works(ctx, binaryPath(in.bin)) {
		o.change, o.list, err = in.chain(entry)
		return o, err
	}
	o.binary, err = placeBinary(ctx, in.plugin, in.bin, in.dryRun, func(versions []string) error {
		c, err := in.plan(entry)
		if err != nil {
			return err
		}
		return c.checkVersions(versions)
	})
	if err != nil {
		return o, err
	}
	switch {
	case in.dryRun && o.binary:
		in.say("would write %s", binaryPath(in.bin))
	case o.binary:
		in.say("wrote %s", binaryPath(in.bin))
	default:
		in.say("%s is up to date", binaryPath(in.bin))
	}
	o.change, o.list, err = in.chain(entry)
	return o, err
}

// plan computes the new conflist without writing it. If in.anyPlace is set, a right entry may stay at any position except the first,
// where no network interface exists yet. If in.gentle is set, so may any neardns entry.
func (in install) plan(entry []byte) (change, error) {
	c, err := planAppend(in.conf, in.file, entry)
	if err != nil || c.from != c.to {
		return c, err
	}
	have, err := conflist.Read(c.before)
	if err != nil {
		return c, fmt.Errorf("%s: %w", c.from, err)
	}
	right := in.gentle && have.Position() > 1
	if !right && in.anyPlace {
		if right, err = conflist.Holds(c.before, entry); err != nil {
			return c, err
		}
	}
	if !right {
		return c, nil
	}
	c.after, c.Network = c.before, have
	return c, nil
}

// chain adds the entry to the network's conflist. It returns the change, and whether it wrote the file or, in a dry run, would have.
func (in install) chain(entry []byte) (change, bool, error) {
	c, wrote, err := in.write(func() (change, error) { return in.plan(entry) })
	if err != nil {
		return c, false, err
	}
	where := fmt.Sprintf("network %s, plugin %d of %d", c.Name, c.Position(), len(c.Types))
	switch {
	case !wrote:
		in.say("%s is up to date: %s", c.to, where)
	case !in.dryRun:
		in.say("wrote %s: %s", c.to, where)
		if c.from != c.to {
			in.say("removed %s, which it replaces", c.from)
		}
	}
	return c, wrote, nil
}

// lockAndSweep locks both folders and removes temporary files that a killed installer left. It locks in alphabetical order, so that two
// installers cannot deadlock.
func lockAndSweep(ctx context.Context, bin, conf string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	all := []string{min(bin, conf), max(bin, conf)}
	if same(bin, conf) {
		all = all[:1]
	}
	var held []func()
	unlock = func() {
		for _, u := range held {
			u()
		}
	}
	for _, folder := range all {
		u, err := atomicfile.Lock(ctx, folder)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
		if err := exchanger().Sweep(folder); err != nil {
			unlock()
			return nil, err
		}
	}
	return unlock, nil
}

func same(a, b string) bool {
	ia, errA := os.Stat(a)
	ib, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(ia, ib)
}
