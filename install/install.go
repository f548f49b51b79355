package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/translate"
)

const (
	lockTimeout = time.Minute
	// A network's own installer writes once or a few times at its start. Whoever still writes after so many tries is
	// fighting, and to join in would only wear the disk.
	maxTries = 5
)

type install struct {
	folders
	nodeConfig, entryFile string
	plugin, agent         string
	kubeletTo             string // the state folder, to be told what the kubelet's configuration says; "": nobody
	wait                  time.Duration
	gentle                bool                                    // only add what is missing: a binary that works, an entry of ours wherever it stands, are left
	anyPlace              bool                                    // an entry that another plugin stands behind is right too
	force                 bool                                    // also where nothing translates the cluster DNS address
	look                  func(...netip.Addr) []translate.Finding // nil: do not ask
	told                  map[string]bool                         // said already
	out                   io.Writer
}

func (in install) say(format string, args ...any) { _, _ = fmt.Fprintf(in.out, format+"\n", args...) }

func (in install) run(ctx context.Context) error {
	_, err := in.pass(ctx)
	return err
}

// outcome is what one pass changed, or would have changed.
type outcome struct {
	entry  []byte
	binary bool
	list   bool
	change // the network that was found
}

// pass makes binary and list right, once.
func (in install) pass(ctx context.Context) (outcome, error) {
	entry, err := in.entry(ctx)
	if err != nil {
		return outcome{}, err
	}
	if err := in.tellKubelet(ctx); err != nil {
		return outcome{}, err
	}
	return in.place(ctx, entry)
}

func (in install) place(ctx context.Context, entry []byte) (outcome, error) {
	// All that can be found out without writing comes first.
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
	o.binary, err = placeBinary(ctx, in.plugin, in.bin, in.dryRun, func(speaks []string) error {
		c, err := in.plan(entry)
		if err != nil {
			return err
		}
		return c.speaks(speaks)
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

// plan forms the network's list. Where anyPlace is set, a right entry may stand anywhere in it but first.
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

// entry returns the conflist entry: ready from a file, or as the agent's binary makes it from the node's configuration.
// The agent alone knows how to read that and how to find what it leaves out.
func (in install) entry(ctx context.Context) ([]byte, error) {
	if in.entryFile != "" {
		entry, err := os.ReadFile(in.entryFile)
		if err != nil {
			return nil, fmt.Errorf("%w: read entry: %w", errConfig, err)
		}
		if err := checkEntry(in.entryFile, entry); err != nil {
			return nil, err
		}
		return entry, validate(ctx, in.plugin, in.entryFile)
	}
	if _, err := os.Stat(in.nodeConfig); err != nil {
		return nil, fmt.Errorf("%w: %w", errConfig, err)
	}
	entry, err := in.show(ctx, "conflist-entry")
	if err != nil {
		return nil, err
	}
	return entry, checkEntry(in.nodeConfig, entry)
}

// show has the agent's binary read the node's configuration.
func (in install) show(ctx context.Context, format string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, in.agent, "config", "show", "--format", format, "--config", in.nodeConfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 2 {
			return nil, fmt.Errorf("%w: %s", errConfig, strings.TrimSpace(stderr.String()))
		}
		return nil, fmt.Errorf("have %s read %s: %w%s", in.agent, in.nodeConfig, err, said(&stderr))
	}
	return stdout.Bytes(), nil
}

// tellKubelet writes down what is detected by the kubelet's own file, for agent and watch, which do not see it: its folder holds
// every pod's secrets. What was written before goes where that file is gone.
func (in install) tellKubelet(ctx context.Context) error {
	if in.kubeletTo == "" || in.dryRun || in.nodeConfig == "" {
		return nil
	}
	text, err := in.show(ctx, "kubelet")
	if err != nil {
		return err
	}
	if len(text) == 0 {
		return podfile.RemoveKubelet(in.kubeletTo)
	}
	var k podfile.Kubelet
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("what %s found of the kubelet: %w", in.agent, err)
	}
	return podfile.WriteKubelet(in.kubeletTo, k)
}

// validate has the plugin judge an entry that a person wrote: at run time it passes over keys that it does not know.
func validate(ctx context.Context, plugin, file string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin, "validate", file)
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		return nil // good, or no plugin that can be run, which is found out before it is put in place
	}
	var faults []string
	for line := range strings.Lines(stderr.String()) {
		if !strings.Contains(line, ": warning: ") {
			faults = append(faults, strings.TrimSpace(line))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errConfig, strings.Join(faults, "; "))
}

// checkEntry tries the entry on a list that takes any.
func checkEntry(from string, entry []byte) error {
	if _, err := conflist.Append([]byte(`{"name":"try","plugins":[{"type":"main"}]}`), entry); err != nil {
		return fmt.Errorf("%w: %s: %w", errConfig, from, err)
	}
	return nil
}

// await returns nil once there is a network that can be edited, and says why there is none when the wait is over. A file
// that cannot be read may be one that its owner is just writing.
func (in install) await(ctx context.Context, entry []byte) error {
	ctx, cancel := context.WithTimeout(ctx, max(in.wait, 0))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		c, err := in.plan(entry)
		if err == nil {
			err = c.speaks(conflist.Versions())
		}
		if err == nil {
			err = in.translated(c, entry)
		}
		if err == nil {
			return nil
		}
		if first && in.wait > 0 {
			in.say("waiting up to %s: %v", in.wait, err)
		}
		if errors.Is(err, errNotTranslated) {
			tick.Reset(lookEvery)
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (c change) speaks(versions []string) error {
	if err := c.Speaks(versions); err != nil {
		return fmt.Errorf("%s: %w", c.from, err)
	}
	return nil
}

// chain puts the entry into the network's list, and tells whether it wrote, or would have written.
func (in install) chain(entry []byte) (change, bool, error) {
	for range maxTries {
		c, err := in.plan(entry)
		if err != nil {
			return c, false, err
		}
		where := fmt.Sprintf("network %s, plugin %d of %d", c.Name, c.Position(), len(c.Types))
		if c.none() {
			in.say("%s is up to date: %s", c.to, where)
			return c, false, nil
		}
		if in.dryRun {
			in.say("would write %s: %s", c.to, where)
			_, _ = io.WriteString(in.out, diff(c.from, c.to, c.before, c.after))
			return c, true, nil
		}
		if err := c.apply(); errors.Is(err, errMoved) {
			continue
		} else if err != nil {
			return c, false, err
		}
		in.say("wrote %s: %s", c.to, where)
		if c.from != c.to {
			in.say("removed %s, which it replaces", c.from)
		}
		return c, true, nil
	}
	return change{}, false, fmt.Errorf("network in %s: %w, %d times running: another program keeps writing it", in.conf, errMoved, maxTries)
}

// lockAndSweep locks the folders in the order of their names, so that two installers never wait for each other, and
// clears what a killed one left.
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
		u, err := lock(ctx, folder)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
		if err := sweep(folder); err != nil {
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
