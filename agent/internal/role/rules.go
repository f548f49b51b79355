package role

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
)

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
