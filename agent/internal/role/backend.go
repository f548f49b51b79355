package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// needsNftables is what to do where the nftables back end cannot be had.
const needsNftables = "the nftables back end needs nf_tables with socket, fib, notrack and conntrack zone expressions (Linux 5.10 or later, modules nf_tables, nft_socket, nft_fib_inet, nft_ct, nft_masq)"

// needsIptables is the same for iptables.
const needsIptables = "the iptables back end needs iptables with the matches recent and socket and the targets MARK and CT (modules xt_recent, xt_socket, xt_mark, xt_CT) and veth"

// chooseBackend decides by what rules this agent works: by the configuration, else by what stands on the node already, else
// nftables where the kernel takes all of its rules, and iptables otherwise.
func chooseBackend(ctx context.Context, log *slog.Logger, stats *iptables.Stats, want plan.Plan) (backend.Kind, error) {
	tried, err := candidates(want.Backend, want.Folders.State, stats)
	if err != nil {
		return backend.Kind{}, err
	}
	var errs []error
	for _, k := range tried {
		// A lock that somebody holds says nothing of the kernel, and must not move a node's rules to another back end.
		err := patiently(ctx, log, "the trial of the rules", func() error {
			table, err := k.Open(-1)
			if err != nil {
				return err
			}
			return errors.Join(table.Supported(want.Addresses()...), table.Close())
		})
		if err == nil {
			return k, nil
		} else if ctx.Err() != nil {
			return backend.Kind{}, err
		}
		needs := needsNftables
		if k.IsIptables() {
			needs = needsIptables
		}
		errs = append(errs, fmt.Errorf("%s: %w: %s", k, err, needs))
	}
	return backend.Kind{}, errors.Join(errs...)
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
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause):
		}
	}
}

// candidates lists what may serve, the best first.
func candidates(setting, stateDir string, stats *iptables.Stats) ([]backend.Kind, error) {
	switch setting {
	case config.BackendNftables:
		return []backend.Kind{{}}, nil
	case config.BackendIptablesNFT, config.BackendIptablesLegacy:
		return []backend.Kind{backend.Iptables(iptables.Variant(setting), stats)}, nil
	}
	variants, err := iptables.Find(-1)
	if err != nil && (setting == config.BackendIptables || !errors.Is(err, exec.ErrNotFound)) {
		return nil, err
	}
	var out []backend.Kind
	for _, f := range variants {
		out = append(out, backend.Iptables(f, stats))
	}
	if setting == config.BackendIptables {
		return out, nil
	}
	stands, err := inspect.Installed(stateDir)
	if err != nil {
		return nil, err
	}
	if stands.IsIptables() {
		return append(out, backend.Kind{}), nil
	}
	return append([]backend.Kind{{}}, out...), nil
}
