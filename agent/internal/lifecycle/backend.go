package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/tick"
)

// chooseBackend decides by what rules this agent works: by the configuration, else by what stands on the node already, else
// nftables where the kernel takes all of its rules, and iptables otherwise.
func chooseBackend(ctx context.Context, log *slog.Logger, stats *iptables.Stats, want plan.Plan) (rules.Kind, error) {
	stands := func() (rules.Kind, error) { return inspect.Installed(want.Folders.State) }
	tried, err := rules.Candidates(want.Backend, stands, stats)
	if err != nil {
		return rules.Kind{}, err
	}
	var errs []error
	for _, k := range tried {
		// A lock that somebody holds says nothing of the kernel, and must not move a node's rules to another back end.
		err := patiently(ctx, log, "the trial of the rules", func() error { return k.Supported(-1, want.Addresses()...) })
		if err == nil {
			return k, nil
		} else if ctx.Err() != nil {
			return rules.Kind{}, err
		}
		errs = append(errs, fmt.Errorf("%s: %w: %s", k, err, k.Needs()))
	}
	return rules.Kind{}, errors.Join(errs...)
}

// busyPause is between two tries of what another program was in the way of; a try itself waits for it some seconds.
const busyPause = 250 * time.Millisecond

// patiently does what a start needs until no other program is in its way, or ctx ends. To end instead would be no help: who
// starts the agent again waits longer each time, and the pods of a node that was served before have kube-dns meanwhile.
func patiently(ctx context.Context, log *slog.Logger, what string, do func() error) error {
	for said := false; ; {
		err := do()
		if !iptables.Busy(err) {
			return err
		}
		if !said {
			log.Warn("iptables is kept busy by another program, waiting for it", "for", what, "err", err)
			said = true
		}
		if !tick.Pause(ctx, busyPause) {
			return err
		}
	}
}
