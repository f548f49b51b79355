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

// hostRules implements node.Rules, and records for the plugin in which back end the host's rules are.
type hostRules struct {
	rules.Rules
	kind     rules.Kind
	stateDir string
	secret   steer.Secret        // marks this agent's lease datagrams
	written  nodestate.HostRules // what was last written for the plugin
}

// withSecret adds the secret of this start to a description of the rules.
func (h *hostRules) withSecret(rs steer.Ruleset) steer.Ruleset {
	if host, ok := rs.(steer.Host); ok {
		host.Secret = h.secret
		return host
	}
	return rs
}

// Unexempt implements node.Rules.
func (h *hostRules) Unexempt(addrs ...netip.Addr) error { return h.Exempt(nil, addrs) }

// Repair implements node.Rules. Only the loop's goroutine calls it.
func (h *hostRules) Repair(rs steer.Ruleset) ([]string, error) {
	drift, err := h.Rules.Repair(h.withSecret(rs))
	if err != nil {
		return drift, err
	}
	current := nodestate.HostRules{Backend: h.kind.String(), Addresses: rules.Addresses(rs), Switch: nodestate.SwitchOf(rs)}
	if reflect.DeepEqual(h.written, current) {
		return drift, nil
	}
	// Written first, because the installer's watch restores the rules by this file.
	if err := nodestate.HostRulesFile(h.stateDir).Write(current); err != nil {
		return drift, err
	}
	if h.written.Backend == "" {
		if err := h.kind.RemoveVariants(); err != nil {
			return drift, err
		}
	}
	h.written = current
	return drift, nil
}

// replaceRules replaces another back end's rules on the node with those of this agent's back end. The node always has rules: the new ones
// are added before the old ones are removed, and neither has a lease meanwhile. If there are no others, it does nothing.
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
	// Pods' tables of a back end that accepts the packets of any back end's switch are converted first; others only after the new rules.
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
	a.log.Info("host rules moved to another back end", "backend", k.String())
	return nil
}
