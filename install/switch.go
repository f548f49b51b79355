package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// agentTime is what a living agent has to mend its rules by itself, as it does within moments. One that hangs does not.
	agentTime = 600 * time.Millisecond
	agentLook = 50 * time.Millisecond
	// A fight with somebody who takes the rules away again and again: so many repairs, each soon after the one before, are more than
	// an operator at work makes; from there on the pause after each doubles.
	fightSoon  = 10 * time.Second
	fightAfter = 10
	pauseFirst = 500 * time.Millisecond
	pauseLast  = 5 * time.Second
)

// keeper puts the host's rules back where they are gone while no agent does: a steered pod's questions end in nothing then. What
// they should be stands in the state folder. It only adds: rules of another version are left, and there is no lease in what it
// makes, so pods go to kube-dns.
type keeper struct {
	stateDir string
	poll     time.Duration // between two looks without an event
	say      func(format string, args ...any)
	repairs  atomic.Int64
	mended   tick.Chan // ticks after each repair

	streak int       // repairs that came soon after one another
	last   time.Time // of a repair
	told   string    // the last fault that was said
}

func newKeeper(stateDir string, poll time.Duration, say func(string, ...any)) *keeper {
	return &keeper{stateDir: stateDir, poll: poll, say: say, mended: tick.New()}
}

// run keeps the rules until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.follow(ctx)
		if err != nil && ctx.Err() == nil {
			k.fault(err)
		}
		tick.Pause(ctx, retryAfter)
	}
}

// fault says what is news.
func (k *keeper) fault(err error) {
	if text := err.Error(); text != k.told {
		k.told = text
		k.say("the host's rules cannot be kept while no agent does, tried again every %s: %v", retryAfter, err)
	}
}

// follow keeps the rules of the back end that they stand in, until that is another one. Where none stand, it returns at once.
func (k *keeper) follow(ctx context.Context) error {
	stand, err := nodestate.ReadHostRules(k.stateDir)
	if err != nil || stand.Switch == nil {
		return err
	}
	kind, err := rules.Named(stand.Backend)
	if err != nil {
		return err
	}
	host, err := kind.OpenHost(-1)
	if err != nil {
		return err
	}
	defer host.Close() //nolint:errcheck // nothing is held back
	watching, stop := context.WithCancel(ctx)
	changed, err := host.Watch(watching)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		for range changed { // closed when nothing of it runs any more
		}
	}()
	again := time.NewTimer(k.poll)
	defer again.Stop()
	for {
		moved, err := k.look(ctx, host, stand.Backend)
		if err != nil || moved || ctx.Err() != nil {
			return err
		}
		k.told = ""
		again.Reset(k.poll)
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-changed:
			if !ok {
				return errors.New("the kernel tells of no changes any more")
			}
		case <-again.C:
		}
	}
}

// look puts back what is gone, once. moved: the rules stand in another back end, or nowhere.
func (k *keeper) look(ctx context.Context, host rules.Rules, name string) (moved bool, err error) {
	sw, gone, moved, err := k.missing(host, name)
	for begun := time.Now(); err == nil && len(gone) > 0 && k.agentAnswers() && time.Since(begun) < agentTime; {
		if !tick.Pause(ctx, agentLook) {
			return false, nil
		}
		sw, gone, moved, err = k.missing(host, name)
	}
	if err != nil || moved || len(gone) == 0 {
		return moved, err
	}
	if err := host.Ensure(sw.Host()); err != nil {
		return false, fmt.Errorf("put back: %w", err)
	}
	// A cleanup takes the file away before the rules, so where both went between our look and now, the rules have to go again.
	if now, err := nodestate.ReadHostRules(k.stateDir); err == nil && now.Backend == "" {
		return true, host.Remove()
	}
	k.repairs.Add(1)
	k.mended.Send()
	k.say("the host's rules (%s) were gone and no agent put them back: they stand again, and give steered pods kube-dns (gone were: %s)", name, few(gone))
	if rest := k.rest(); rest > 0 {
		tick.Pause(ctx, rest)
	}
	return false, nil
}

// missing reads what should stand in this back end, and what of it does not.
func (k *keeper) missing(host rules.Rules, name string) (sw nodestate.Switch, gone []string, moved bool, err error) {
	stand, err := nodestate.ReadHostRules(k.stateDir)
	if err != nil {
		return sw, nil, false, err
	}
	if stand.Backend != name || stand.Switch == nil {
		return sw, nil, true, nil
	}
	gone, err = host.Lacks(stand.Switch.Host())
	return *stand.Switch, gone, false, err
}

// rest is how long to wait after a repair.
func (k *keeper) rest() time.Duration {
	now := time.Now()
	if now.Sub(k.last) > fightSoon {
		k.streak = 0
	}
	k.last, k.streak = now, k.streak+1
	if k.streak < fightAfter {
		return 0
	}
	return min(pauseFirst<<min(k.streak-fightAfter, 10), pauseLast)
}

// agentAnswers tells whether there is a process behind the agent's socket; it may hang all the same.
func (k *keeper) agentAnswers() bool {
	c, err := net.DialTimeout("unix", filepath.Join(k.stateDir, nodestate.AgentSocketName), agentTime)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
