package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/tick"
)

// chooseBackend chooses the back end (nftables or iptables) of this agent's rules: the first of the candidates for which the kernel accepts
// a trial of the rules. With backend: auto, the back end of the rules that the node already has comes first.
func (a *agent) chooseBackend(ctx context.Context, stats *iptables.Stats, want plan.Plan) (rules.Kind, error) {
	stands := func() (rules.Kind, error) { return inspect.Installed(want.Folders.State) }
	tried, err := rules.Candidates(want.Backend, stands, stats)
	if err != nil {
		return rules.Kind{}, err
	}
	if now := steeredBy(want.Folders.State, tried[0]); len(want.Redirects) > 0 && !now.Alike(tried[0]) {
		a.log.Warn("pods are steered by another back end than the configured one, so it stays; to change it, run `neardns-agent cleanup` on "+
			"the node while no agent runs, or reboot the node", "backend", now.String(), "configured", want.Backend)
		if tried, err = rules.Candidates(now.String(), nil, stats); err != nil {
			return rules.Kind{}, err
		}
	}
	var errs []error
	for _, k := range tried {
		// If another program holds iptables' lock, wait: the trial failed for no fault of the kernel, and must not make the agent choose
		// another back end.
		err := a.retryWhileBusy(ctx, "test of the packet rules", func() error { return k.Supported(-1, want.Addresses()...) })
		if err == nil {
			return k, nil
		} else if ctx.Err() != nil {
			return rules.Kind{}, err
		}
		errs = append(errs, fmt.Errorf("%s: %w: %s", k, err, k.Needs()))
	}
	return rules.Kind{}, errors.Join(errs...)
}

// steeredBy returns the back end of the node's steered pods: the rules in a running pod are not replaced by those of another one, and fit
// only the host rules of their own. If no pod is steered, it returns otherwise.
func steeredBy(stateDir string, otherwise rules.Kind) rules.Kind {
	files, _ := podfile.List(stateDir) // the loop reports files that cannot be read
	for _, f := range files {
		if k, err := rules.Named(f.Backend); err == nil && len(f.In(podfile.Steered)) > 0 {
			return k
		}
	}
	return otherwise
}

// busyPause is the pause between two tries while another program holds iptables' lock. Each try also waits some seconds for the lock.
const busyPause = 250 * time.Millisecond

// retryWhileBusy retries do while another program holds iptables' lock, until ctx ends. Ending the agent instead would not help: the
// kubelet restarts it with a growing delay. Pods use kube-dns meanwhile. what names the step in the log.
func (a *agent) retryWhileBusy(ctx context.Context, what string, do func() error) error {
	for logged := false; ; {
		err := do()
		if !iptables.Busy(err) {
			return err
		}
		a.waited = true
		if !logged {
			a.log.Warn("another program holds iptables' lock; this step is retried until the lock is free", "step", what, "err", err)
			logged = true
		}
		if !tick.Pause(ctx, busyPause) {
			return err
		}
	}
}
