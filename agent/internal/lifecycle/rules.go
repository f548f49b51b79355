package lifecycle

import (
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

// hostRules implements node.Rules. It also records the back end and the rules in a file for the plugin and the installer's watch.
type hostRules struct {
	rules.Rules
	kind     rules.Kind
	stateDir string
	secret   steer.Secret        // is in this agent's lease datagrams; with nftables, the rules accept no others
	written  nodestate.HostRules // last content that this agent wrote to that file; zero before the first write
}

// Unexempt implements node.Rules.
func (h *hostRules) Unexempt(addrs ...netip.Addr) error { return h.Exempt(nil, addrs) }

// Repair implements node.Rules. One goroutine at a time calls it: at the start the one that replaces another back end's rules
// (replaceRules), then the node's loop.
func (h *hostRules) Repair(host steer.Host) ([]string, error) {
	host.Secret = h.secret
	drift, err := h.Rules.Repair(host)
	if err != nil {
		return drift, err
	}
	current := nodestate.HostRules{Backend: h.kind.String(), Addresses: rules.Addresses(host), Switch: nodestate.SwitchOf(host)}
	if reflect.DeepEqual(h.written, current) {
		return drift, nil
	}
	// The file is written before another variant's rules are removed, because the installer's watch restores the rules that the file
	// describes.
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

// replaceRules replaces the host's rules of the other back end with those of this agent's back end. It removes the old switch last, so that
// the host always has one. The new switch has no lease yet, so kube-dns answers. If the other back end has no rules, replaceRules does
// nothing. If a pod was steered by the other back end since chooseBackend, it returns an error: the next start keeps that back end.
func (a *agent) replaceRules(k rules.Kind, own *hostRules, p plan.Plan, registry *pods.Pods) error {
	old, err := k.Other().OpenStanding()
	if err == nil && old != nil {
		err = errors.Join(a.replace(k, own, old, p, registry), old.Close())
	}
	if err != nil {
		return fmt.Errorf("take over from the %s back end: %w", k.Other(), err)
	}
	return nil
}

func (a *agent) replace(k rules.Kind, own *hostRules, old rules.Rules, p plan.Plan, registry *pods.Pods) error {
	if !steeredBy(p.Folders.State, k).Alike(k) {
		return errors.New("a pod is steered by it")
	}
	host, err := p.Host(registry, rules.Uplinks)
	if err != nil {
		return err
	}
	if _, err := own.Repair(host); err != nil {
		return err
	}
	if err := old.Remove(); err != nil {
		return err
	}
	a.log.Info("host's packet rules replaced by those of another back end", "backend", k.String())
	return nil
}
