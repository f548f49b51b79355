package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// hostRules are the host's rules as the loop keeps them: once they stand, the plugin is told in which back end.
type hostRules struct {
	rules.Rules
	kind     rules.Kind
	stateDir string
	secret   steer.Secret        // by which this agent's lease datagrams are known
	told     nodestate.HostRules // what the plugin was told
}

// ours is a description with the secret of this start.
func (h *hostRules) ours(rs steer.Ruleset) steer.Ruleset {
	if host, ok := rs.(steer.Host); ok {
		host.Secret = h.secret
		return host
	}
	return rs
}

// Unexempt is for the loop.
func (h *hostRules) Unexempt(addrs ...netip.Addr) error { return h.Exempt(nil, addrs) }

// Repair is for the loop, which is one goroutine.
func (h *hostRules) Repair(rs steer.Ruleset) ([]string, error) {
	drift, err := h.Rules.Repair(h.ours(rs))
	if err != nil {
		return drift, err
	}
	stand := nodestate.HostRules{Backend: h.kind.String(), Addresses: rules.Addresses(rs), Switch: nodestate.SwitchOf(rs)}
	if reflect.DeepEqual(h.told, stand) {
		return drift, nil
	}
	// Told first: the watch puts back what the file says.
	if err := nodestate.WriteHostRules(h.stateDir, stand); err != nil {
		return drift, err
	}
	if h.told.Backend == "" {
		if err := h.kind.RemoveVariants(); err != nil {
			return drift, err
		}
	}
	h.told = stand
	return drift, nil
}

// replaceRules puts the rules of this agent's back end in place of another's that stand on the node. At no moment is there
// none: the new ones are there before the old ones go, and neither has a lease meanwhile. Where nothing of another stands, it
// does nothing.
func (a *agent) replaceRules(ctx context.Context, k rules.Kind, own *hostRules, p plan.Plan, registry *pods.Pods) error {
	for _, other := range k.Others() {
		old, err := other.OpenStanding()
		if err == nil && old != nil {
			err = errors.Join(a.replace(ctx, k, own, old, p, registry), old.Close())
		}
		if err != nil {
			return fmt.Errorf("take over from the %s back end: %w", other, err)
		}
	}
	return nil
}

func (a *agent) replace(ctx context.Context, k rules.Kind, own *hostRules, old rules.Rules, p plan.Plan, registry *pods.Pods) error {
	host, err := p.Host(registry, rules.Uplinks)
	if err != nil {
		return err
	}
	// Pods whose rules take what any back end gives back are converted first; others accept only what their own gives back.
	late := k.Caps().TakesAny
	if !late {
		if _, err := own.Repair(host); err != nil {
			return err
		}
	}
	for _, err := range registry.Convert(ctx) {
		a.log.Error("pod keeps the rules of another back end: restart it", "err", err)
	}
	if late {
		if _, err := own.Repair(host); err != nil {
			return err
		}
	}
	if err := old.Remove(); err != nil {
		return err
	}
	a.log.Info("the host's rules are another back end's now", "backend", k.String())
	return nil
}
