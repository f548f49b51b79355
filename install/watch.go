package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/nodestate"
)

const (
	// settle is how long watch and follow wait after an event, because a file that is written in place is incomplete at first.
	settle = 50 * time.Millisecond
	// retryAfter is how soon a failed pass is repeated if no event comes before, and how long the keeper pauses between two calls of follow.
	retryAfter = 2 * time.Second
)

// watch keeps the plugin and its conflist entry on the node until ctx ends, and the host's rules while no agent does (keeper). It removes
// nothing at its end, because the watch of the next release may already run.
//
// Until a pass succeeds with the current configuration, passes change plugin and conflist as `install` does. The others only add what is
// missing: during a rollout, two watches of different releases run on the node, and each would else replace the other's binary and entry. A
// right entry may be at any position in the list but the first.
type watch struct {
	install
	poll     time.Duration // between two passes without an event
	stateDir string        // the folder for the state that the agent reads; "": none is written
	now      func() time.Time

	keeper    *keeper
	pace      pace
	state     nodestate.Watch
	mute      bool   // the last write of the state failed, and that was logged
	entry     []byte // the conflist entry of the last pass that succeeded; nil before the first
	lastFault string // the last fault that was logged, so that it is logged once
}

func (w *watch) run(ctx context.Context) error {
	w.anyPlace, w.wait, w.pace = true, 0, listPace()
	w.keeper = newKeeper(w.stateDir, w.poll, w.say)
	if w.stateDir != "" {
		ctx, stop := context.WithCancel(ctx)
		var keeping sync.WaitGroup
		keeping.Go(func() { w.keeper.run(ctx) })
		defer keeping.Wait()
		defer stop()
	}
	w.state.Since = w.now()
	source := w.nodeConfig
	if source == "" {
		source = w.entryFile
	}
	err := followFolders(ctx, w.keeper.repaired, w.poll, w.say, func() (time.Duration, error) {
		if after := w.pace.wait(w.now()); after > 0 {
			if w.stateDir != "" {
				w.writeState() // the keeper may have restored rules
			}
			return after, nil
		}
		return w.runPass(ctx)
	}, w.conf, w.bin, filepath.Dir(source))
	if err == nil {
		w.say("stopped; %s stays as it is", w.conf)
	}
	return err
}

// runPass makes one pass, logs what is new, and returns the time until the next. It returns an error only for a bad configuration before
// the first success of a pass. If the configuration becomes bad later, the last good entry stays in the list.
func (w *watch) runPass(ctx context.Context) (next time.Duration, err error) {
	var output bytes.Buffer
	in := w.install
	in.out = &output
	var o outcome
	entry, err := in.entry(ctx)
	if err == nil {
		in.gentle = bytes.Equal(entry, w.entry)
		o, err = in.place(ctx, entry)
	}
	if ctx.Err() != nil { // ctx ended during the pass, so its error means nothing
		return w.poll, nil //nolint:nilerr // the loop ends
	}
	undone := err == nil && o.list && bytes.Equal(w.entry, o.entry)
	if undone {
		w.pace.note(w.now())
	}
	w.record(o, err, undone)
	switch {
	case w.entry == nil && errors.As(err, new(*cli.ExitError)): // a bad configuration
		return 0, err
	case err != nil:
		if text := err.Error(); text != w.lastFault {
			w.lastFault = text
			w.say("cannot install plugin and entry, tried again every %s and at each change: %v", retryAfter, err)
		}
		return retryAfter, nil
	}
	if w.entry == nil || o.binary || o.list || w.lastFault != "" {
		_, _ = io.Copy(w.out, &output)
	}
	w.entry, w.lastFault = o.entry, ""
	if !undone {
		return w.poll, nil
	}
	if rest := w.pace.rest(); rest > 0 {
		w.say("network %s was written %d times in %s without neardns: the program that writes %s (its first plugin is %s) must keep other "+
			"plugins' entries; the next try is in %s",
			o.Name, w.pace.streak, w.now().Sub(w.pace.since).Round(time.Second), o.to, o.Types[0], rest)
		return rest, nil
	}
	return w.poll, nil
}

// record stores the result of a pass in the state file, for the agent's metrics. undone is true if the pass had to add an unchanged entry
// again.
func (w *watch) record(o outcome, err error, undone bool) {
	if w.stateDir == "" {
		return
	}
	now := w.now()
	w.state.Looked, w.state.OK, w.state.Fault = now, err == nil, ""
	if err != nil {
		w.state.Fault = err.Error()
	} else {
		w.state.Network = o.Name
	}
	if undone {
		w.state.Repairs++
	}
	w.state.Fighting = w.pace.rest() > 0 && now.Sub(w.pace.last) <= w.pace.calm
	w.writeState()
}

// writeState writes the state file. It logs a failure once and goes on.
func (w *watch) writeState() {
	w.state.Restored = w.keeper.repairs.Load()
	err := nodestate.WatchFile(w.stateDir).Write(w.state)
	if err != nil && !w.mute {
		w.say("the agent's metrics lack this watch: %v", err)
	}
	w.mute = err != nil
}

// check returns an error that names what is missing or out of date, without writing. As with watch, a right entry may be at any position in
// the list but the first.
func (in install) check(ctx context.Context) error {
	var output bytes.Buffer
	dry := in
	dry.out, dry.dryRun, dry.anyPlace, dry.wait = &output, true, true, 0
	o, err := dry.pass(ctx)
	if err != nil {
		return err
	}
	var faults []error
	if o.binary {
		faults = append(faults, fmt.Errorf("%s is missing or of another version", binaryPath(in.bin)))
	}
	if o.list {
		faults = append(faults, fmt.Errorf("network %s (%s) does not have the entry of this configuration", o.Name, o.from))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: run neardns-install install", errors.Join(faults...))
	}
	_, _ = io.Copy(in.out, &output)
	return nil
}
