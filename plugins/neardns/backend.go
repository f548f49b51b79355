package main

import (
	"fmt"
	"net/netip"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// chooseBackend chooses the back end that wrote the host's rules. If there are no rules, it takes the configured one; if none is
// configured, the one whose rules passed the fallback check on this node.
func (v *verb) chooseBackend() {
	stand, _, err := nodestate.HostRulesFile(v.conf.StateDir).Read()
	if err != nil {
		v.log.Warn("cannot read which back end (nftables or iptables) wrote the host's rules", "verb", v.name, "err", err)
	}
	name := stand.Backend
	if name == "" {
		name, err = v.wantedBackend()
		if err != nil {
			v.log.Warn("cannot find out whether this node uses nftables or iptables", "verb", v.name, "err", err)
		}
	}
	v.useBackend(name, stand)
}

// wantedBackend returns the back end for a host that has no rules yet.
func (v *verb) wantedBackend() (string, error) {
	switch v.conf.Backend {
	case rules.Nftables, rules.Iptables, rules.IptablesNFT, rules.IptablesLegacy:
		found, err := rules.Candidates(v.conf.Backend, nil, nil)
		if err != nil {
			return rules.IptablesNFT, err // each pod's file will have the reason
		}
		return found[0].String(), nil
	}
	proof, _, err := nodestate.ProofFile(v.conf.PersistDir).Read()
	return proof.Backend, err
}

// useBackend makes the verb use the named back end, or nftables if the name is unknown. stand describes the host's rules.
func (v *verb) useBackend(name string, stand nodestate.HostRules) {
	k, err := rules.Named(name)
	if err != nil {
		v.log.Warn("unknown name of a back end; using nftables", "verb", v.name, "err", err)
	}
	v.backend, v.stand = k, stand
}

// useBackendOf makes the verb use the back end of a pod's rules until restore is called.
func (v *verb) useBackendOf(f podfile.File) (restore func()) {
	now, stand := v.backend, v.stand
	if f.Backend != now.Recorded() {
		v.useBackend(f.Backend, nodestate.HostRules{Backend: f.Backend})
	}
	return func() { v.backend, v.stand = now, stand }
}

// missingRules returns why no pod may be steered to these addresses yet, even if the fallback is verified; nil if one may. A back end
// that writes whole chains would remove rules that only the agent knows. The agent adds such an address when it reads the pod's file.
func (v *verb) missingRules(addrs ...netip.Addr) error {
	if v.backend.Caps().Adds || v.stand.Backend == "" || v.stand.Cover(addrs...) {
		return nil
	}
	return fmt.Errorf("the host's %s rules do not cover all of %s yet: the agent adds them", v.backend, steer.JoinAddrs(addrs, ", "))
}

// withRules opens the rules of a netns, calls f with them and closes them.
func (v *verb) withRules(nsFD int, f func(rules.Rules) error) error {
	r, err := v.env.kernel.Open(v.backend, nsFD)
	if err != nil {
		return err
	}
	defer r.Close()
	if nsFD < 0 && v.backend.Caps().Programs {
		return f(recordedRules{r, v.stand})
	}
	return f(r)
}

// ensureSwitch makes the host's rules, or restores them if they are gone, with everything known about them. The first call since the
// node started records what it made, for the calls after it.
func (v *verb) ensureSwitch(host rules.Rules, own steer.Host) error {
	whole := v.stand.With(own)
	stands, err := host.IsComplete(whole) // another call may have been faster
	if err == nil && !stands {
		err = host.Ensure(whole)
	}
	if err != nil || v.stand.Backend != "" {
		return err
	}
	made := nodestate.HostRules{Backend: v.backend.String(), Addresses: rules.Addresses(whole), Switch: nodestate.SwitchOf(whole)}
	return nodestate.HostRulesFile(v.conf.StateDir).Write(made)
}

// recordedRules are the host's rules of a back end that starts a program for each read, which takes longer than the rest of an ADD.
// It trusts the record of the process that made the rules, and checks only that packets still reach them.
type recordedRules struct {
	rules.Rules
	stand nodestate.HostRules
}

func (h recordedRules) exist() bool { return h.stand.Backend != "" }

// IsComplete reports whether the recorded rules exist for the IP families of rs.
func (h recordedRules) IsComplete(rs steer.Ruleset) (bool, error) {
	if !h.exist() {
		return false, nil
	}
	return h.Rules.IsComplete(rs)
}

func (h recordedRules) Present() (bool, error) {
	if h.stand.Switch == nil {
		return h.exist(), nil
	}
	return h.IsComplete(h.stand.Switch.Host())
}

// IsUplink returns false: pods' links are no uplinks, and the agent checks again.
func (recordedRules) IsUplink(string) (bool, error) { return false, nil }

// hostRulesName returns the name under which an operator finds our rules on the host; tableName is the name in a pod's netns.
func hostRulesName(k rules.Kind) string {
	if k.Recorded() == "" {
		return "table " + tableName(k)
	}
	return tableName(k)
}

func tableName(k rules.Kind) string {
	if name := k.Recorded(); name != "" {
		return "NEARDNS chains of " + name
	}
	return "inet " + steer.TableName
}
