package main

import (
	"fmt"
	"net/netip"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// chooseBackend sets the back end (nftables or iptables) that this call uses: the one that wrote the host's rules. If these are not
// recorded, it is the configured one; if none is configured, the one with which the agent verified the fallback on this node; else
// nftables.
func (v *verb) chooseBackend() {
	recorded, _, err := nodestate.HostRulesFile(v.conf.StateDir).Read()
	if err != nil {
		v.log.Warn("cannot read the record of the host's packet rules; this call assumes that there are none", "verb", v.name, "err", err)
	}
	name := recorded.Backend
	if name == "" {
		name, err = v.wantedBackend()
		if err != nil {
			v.log.Warn("cannot determine this node's back end (nftables or iptables); this call tries a default", "verb", v.name, "err", err)
		}
	}
	v.useBackend(name, recorded)
}

// wantedBackend returns the name of the back end to use on a host that has no rules yet.
func (v *verb) wantedBackend() (string, error) {
	switch v.conf.Backend {
	case rules.Nftables, rules.Iptables, rules.IptablesNFT, rules.IptablesLegacy:
		found, err := rules.Candidates(v.conf.Backend, nil, nil)
		if err != nil {
			return rules.IptablesNFT, err // the caller logs the error
		}
		return found[0].String(), nil
	}
	proof, _, err := nodestate.ProofFile(v.conf.PersistDir).Read()
	return proof.Backend, err
}

// useBackend makes this call use the named back end, or nftables if the name is unknown. recorded is the stored description of
// the host's rules.
func (v *verb) useBackend(name string, recorded nodestate.HostRules) {
	k, err := rules.Named(name)
	if err != nil {
		v.log.Warn("recorded back end (nftables or iptables) is unknown; this call uses nftables", "verb", v.name, "err", err)
	}
	v.backend, v.recorded = k, recorded
}

// useBackendOf makes this call use the back end that wrote the pod's rules, until restore is called.
func (v *verb) useBackendOf(f podfile.File) (restore func()) {
	now, recorded := v.backend, v.recorded
	if f.Backend != now.Recorded() {
		v.useBackend(f.Backend, nodestate.HostRules{Backend: f.Backend})
	}
	return func() { v.backend, v.recorded = now, recorded }
}

// missingRules returns an error if the host's rules do not cover these addresses yet and the plugin must not add them. A back
// end that replaces whole chains (iptables) would remove rules that only the agent knows. The agent adds the addresses when it
// reads the pod's state file.
func (v *verb) missingRules(addrs ...netip.Addr) error {
	if v.backend.Caps().Adds || v.recorded.Backend == "" || v.recorded.Cover(addrs...) {
		return nil
	}
	return fmt.Errorf("the host's %s rules do not cover all of %s yet: the agent adds them", v.backend, steer.JoinAddrs(addrs, ", "))
}

// withRules opens the neardns rules in a netns (-1 is the host's), calls f with them and closes them.
func (v *verb) withRules(nsFD int, f func(rules.Rules) error) error {
	r, err := v.env.kernel.Open(v.backend, nsFD)
	if err != nil {
		return err
	}
	defer r.Close()
	if nsFD < 0 && v.backend.Caps().Programs {
		return f(recordedRules{r, v.recorded})
	}
	return f(r)
}

// ensureSwitch adds the rules that the host lacks: those of this call's configuration (own) and those in the recorded
// description. If there is no record yet, as in the first call after a boot, it writes one for later calls.
func (v *verb) ensureSwitch(host rules.Rules, own steer.Host) error {
	whole := v.recorded.With(own)
	complete, err := host.IsComplete(whole) // a parallel call may have completed the rules
	if err == nil && !complete {
		err = host.Ensure(whole)
	}
	if err != nil || v.recorded.Backend != "" {
		return err
	}
	made := nodestate.HostRules{Backend: v.backend.String(), Addresses: rules.Addresses(whole), Switch: nodestate.SwitchOf(whole)}
	return nodestate.HostRulesFile(v.conf.StateDir).Write(made)
}

// recordedRules are the host's rules for a back end that starts a program for each read (iptables), which is slow. It trusts the
// record of the process that made the rules, and checks only that packets still reach them.
type recordedRules struct {
	rules.Rules
	recorded nodestate.HostRules
}

func (h recordedRules) exist() bool { return h.recorded.Backend != "" }

// IsComplete reports whether there is a record of the host's rules, and whether packets of rs's IP families still reach those
// rules.
func (h recordedRules) IsComplete(rs steer.Host) (bool, error) {
	if !h.exist() {
		return false, nil
	}
	return h.Rules.IsComplete(rs)
}

func (h recordedRules) Present() (bool, error) {
	if h.recorded.Switch == nil {
		return h.exist(), nil
	}
	return h.IsComplete(h.recorded.Switch.Host())
}

// IsUplink returns false without a look at the rules: a link with pods behind it is no uplink, and the agent checks this again
// later.
func (recordedRules) IsUplink(string) (bool, error) { return false, nil }

// hostRulesName returns how an error message names neardns's rules on the host. tableName does so for a pod's netns.
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
