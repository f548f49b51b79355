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
	// agentTime is how long the keeper waits for a running agent to restore the rules itself. A working agent needs a few milliseconds; one
	// that needs longer counts as hanging.
	agentTime = 600 * time.Millisecond
	agentPoll = 50 * time.Millisecond
)

// keeper restores the host's rules if they disappear while no agent repairs them: without these rules, queries of steered pods are lost.
// A file in the state folder describes the rules. The keeper grants no lease, so that pods' queries go to kube-dns. It removes rules only
// if a cleanup ran while it restored them.
type keeper struct {
	stateDir string
	poll     time.Duration // between two checks without an event
	say      func(format string, args ...any)
	repairs  atomic.Int64
	repaired tick.Chan // gets a value after each repair

	pace      pace
	lastFault string // the last fault that was logged, so that it is logged once
}

func newKeeper(stateDir string, poll time.Duration, say func(string, ...any)) *keeper {
	return &keeper{stateDir: stateDir, poll: poll, say: say, repaired: tick.New(), pace: rulesPace()}
}

// run restores the rules until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.follow(ctx)
		if err != nil && ctx.Err() == nil {
			k.fault(err)
		}
		tick.Pause(ctx, retryAfter)
	}
}

// fault logs a fault once.
func (k *keeper) fault(err error) {
	if text := err.Error(); text != k.lastFault {
		k.lastFault = text
		k.say("the host's rules cannot be restored, tried again every %s: %v", retryAfter, err)
	}
}

// follow watches and repairs the rules of the back end (nftables or iptables) that the state file names, until the file names another
// one or has no rules that the keeper may restore.
func (k *keeper) follow(ctx context.Context) error {
	stand, _, err := nodestate.HostRulesFile(k.stateDir).Read()
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
	defer host.Close() //nolint:errcheck // every change is written by then
	watching, stop := context.WithCancel(ctx)
	changed, err := host.Watch(watching)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		tick.Drain(changed)
	}()
	again := time.NewTimer(k.poll)
	defer again.Stop()
	for {
		moved, err := k.repair(ctx, host, stand.Backend)
		if err != nil || moved || ctx.Err() != nil {
			return err
		}
		k.lastFault = ""
		again.Reset(k.poll)
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-changed:
			if !ok {
				return errors.New("the kernel reports no changes any more")
			}
		case <-again.C:
		}
	}
}

// repair restores the rules if some are missing, and then pauses as k.pace requires. moved is true if the state file now names another back
// end, or no rules that the keeper may restore.
func (k *keeper) repair(ctx context.Context, host rules.Rules, name string) (moved bool, err error) {
	sw, gone, moved, err := k.missing(host, name)
	for begun := time.Now(); err == nil && len(gone) > 0 && k.agentAnswers() && time.Since(begun) < agentTime; {
		if !tick.Pause(ctx, agentPoll) {
			return false, nil
		}
		sw, gone, moved, err = k.missing(host, name)
	}
	if err != nil || moved || len(gone) == 0 {
		return moved, err
	}
	if err := host.Ensure(sw.Host()); err != nil {
		return false, fmt.Errorf("restore the rules: %w", err)
	}
	// A cleanup removes the state file before the rules. If it ran after the file was read here, remove the rules again.
	if now, _, err := nodestate.HostRulesFile(k.stateDir).Read(); err == nil && now.Backend == "" {
		return true, host.Remove()
	}
	k.repairs.Add(1)
	k.repaired.Send()
	k.say("restored the host's rules (%s), which no agent did; they lead steered pods to kube-dns (missing: %s)", name, few(gone))
	k.pace.note(time.Now())
	if rest := k.pace.rest(); rest > 0 {
		tick.Pause(ctx, rest)
	}
	return false, nil
}

// missing reads the rules that this back end should have from the state file, and returns which of them the kernel lacks.
func (k *keeper) missing(host rules.Rules, name string) (sw nodestate.Switch, gone []string, moved bool, err error) {
	stand, _, err := nodestate.HostRulesFile(k.stateDir).Read()
	if err != nil {
		return sw, nil, false, err
	}
	if stand.Backend != name || stand.Switch == nil {
		return sw, nil, true, nil
	}
	gone, err = host.Missing(stand.Switch.Host())
	return *stand.Switch, gone, false, err
}

// agentAnswers reports whether an agent accepts connections on its socket. It may still hang.
func (k *keeper) agentAnswers() bool {
	c, err := net.DialTimeout("unix", filepath.Join(k.stateDir, nodestate.AgentSocketName), agentTime)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
