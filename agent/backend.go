package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"reflect"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// needsNftables is what to do where the nftables back end cannot be had.
const needsNftables = "the nftables back end needs nf_tables with socket, fib, notrack and conntrack zone expressions (Linux 5.10 or later, modules nf_tables, nft_socket, nft_fib_inet, nft_ct, nft_masq)"

// needsIptables is the same for iptables.
const needsIptables = "the iptables back end needs iptables with the matches recent and socket and the targets MARK and CT (modules xt_recent, xt_socket, xt_mark, xt_CT) and veth"

// chooseBackend decides by what rules this agent works: by the configuration, else by what stands on the node already, else
// nftables where the kernel takes all of its rules, and iptables otherwise. addrs are those that the rules will be about.
func (a *agent) chooseBackend(ctx context.Context, stats *iptables.Stats, addrs ...netip.Addr) (backend.Kind, error) {
	tried, err := candidates(a.conf.Backend, a.conf.StateDir, stats)
	if err != nil {
		return backend.Kind{}, err
	}
	var errs []error
	for _, k := range tried {
		// A lock that somebody holds says nothing of the kernel, and must not move a node's rules to another back end.
		err := patiently(ctx, a.log, "the trial of the rules", func() error {
			table, err := k.Open(-1)
			if err != nil {
				return err
			}
			return errors.Join(table.Supported(addrs...), table.Close())
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

// hostRules are the host's rules as the loop keeps them: once they stand, the plugin is told in which back end.
type hostRules struct {
	backend.Host
	kind     backend.Kind
	stateDir string
	secret   steer.Secret      // by which this agent's lease datagrams are known
	told     podfile.HostRules // what the plugin was told
}

// ours is a description with the secret of this start.
func (h *hostRules) ours(rs steer.Ruleset) steer.Ruleset {
	if host, ok := rs.(steer.Host); ok {
		host.Secret = h.secret
		return host
	}
	return rs
}

// Apply is for the start.
func (h *hostRules) Apply(rs steer.Ruleset) error { return h.Host.Apply(h.ours(rs)) }

// Repair is for the loop, which is one goroutine.
func (h *hostRules) Repair(rs steer.Ruleset) ([]string, error) {
	drift, err := h.Host.Repair(h.ours(rs))
	if err != nil {
		return drift, err
	}
	stand := podfile.HostRules{Backend: h.kind.String(), Addresses: backend.Addresses(rs), Switch: podfile.SwitchOf(rs)}
	if reflect.DeepEqual(h.told, stand) {
		return drift, nil
	}
	// Told first: the watch puts back what the file says.
	if err := podfile.WriteHostRules(h.stateDir, stand); err != nil {
		return drift, err
	}
	if h.told.Backend == "" {
		if err := h.RemoveOthers(); err != nil {
			return drift, err
		}
	}
	h.told = stand
	return drift, nil
}

// replaceRules puts the rules of this agent's back end in place of another's that stand on the node. At no moment is there
// none: the new ones are there before the old ones go, and neither has a lease meanwhile. Where nothing of another stands, it
// does nothing.
func (a *agent) replaceRules(ctx context.Context, k backend.Kind, rules *hostRules, p plan.Plan, registry *pods.Pods) error {
	for _, other := range k.Others() {
		old, err := other.OpenHost(-1)
		if errors.Is(err, steer.ErrNotSupported) {
			continue // then nothing of it stands there
		} else if err != nil {
			return err
		}
		err = a.replace(ctx, k, rules, old, p, registry)
		if err = errors.Join(err, old.Close()); err != nil {
			return fmt.Errorf("take over from the %s back end: %w", other, err)
		}
	}
	return nil
}

func (a *agent) replace(ctx context.Context, k backend.Kind, rules *hostRules, old backend.Host, p plan.Plan, registry *pods.Pods) error {
	present, err := old.Present()
	if err != nil && k.IsIptables() {
		// A kernel without nf_tables has nothing of it; which error says so is the kernel's version's affair.
		a.log.Debug("no nftables to look for a table in", "err", err)
		return nil
	}
	if err != nil || !present {
		return err
	}
	host, err := p.Host(registry, steer.Uplinks)
	if err != nil {
		return err
	}
	if k.IsIptables() {
		if _, err := rules.Repair(host); err != nil {
			return err
		}
	}
	// Pods with nftables' rules accept what either gives back, those with iptables' only what iptables does.
	for _, err := range registry.Convert(ctx) {
		a.log.Error("pod keeps the rules of another back end: restart it", "err", err)
	}
	if !k.IsIptables() {
		if _, err := rules.Repair(host); err != nil {
			return err
		}
	}
	if err := old.Remove(); err != nil {
		return err
	}
	a.log.Info("the host's rules are another back end's now", "backend", k.String())
	return nil
}

// programRuns is what telemetry shows of the runs of iptables' programs.
func programRuns(stats *iptables.Stats) func() telemetry.Programs {
	return func() telemetry.Programs {
		failed, locked := stats.Failed.Load(), stats.Locked.Load()
		return telemetry.Programs{OK: stats.Runs.Load() - failed, Failed: failed - locked, Locked: locked, Time: time.Duration(stats.Time.Load())}
	}
}
