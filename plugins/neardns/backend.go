package main

import (
	"fmt"
	"net/netip"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// chooseBackend takes the back end that the host's rules stand in; where there are none, that of the configuration, or, if it
// names none, the one by whose rules the fallback was proven on this node.
func (v *verb) chooseBackend() {
	stand, err := nodestate.ReadHostRules(v.conf.StateDir)
	if err != nil {
		v.log.Warn("the host's back end is not known", "verb", v.name, "err", err)
	}
	name := stand.Backend
	if name == "" {
		name, err = v.wanted()
		if err != nil {
			v.log.Warn("which back end to use is not known", "verb", v.name, "err", err)
		}
	}
	v.useBackend(name, stand)
}

// wanted is the back end for a host that has no rules yet.
func (v *verb) wanted() (string, error) {
	switch v.conf.Backend {
	case rules.Nftables, rules.Iptables, rules.IptablesNFT, rules.IptablesLegacy:
		found, err := rules.Candidates(v.conf.Backend, nil, nil)
		if err != nil {
			return rules.IptablesNFT, err // whose absence every pod's file will say
		}
		return found[0].String(), nil
	}
	proof, err := nodestate.ReadProof(v.conf.PersistDir)
	return proof.Backend, err
}

// useBackend has the verb work by the back end of a name; one that is not known is nftables. stand is what the host has.
func (v *verb) useBackend(name string, stand nodestate.HostRules) {
	k, err := rules.Named(name)
	if err != nil {
		v.log.Warn("unknown back end", "verb", v.name, "err", err)
	}
	v.backend, v.stand = k, stand
}

// useBackendOf has the verb work by the back end of a pod's rules until it is told to go back.
func (v *verb) useBackendOf(f podfile.File) (goBack func()) {
	now, stand := v.backend, v.stand
	if f.Backend != now.Recorded() {
		v.useBackend(f.Backend, nodestate.HostRules{Backend: f.Backend})
	}
	return func() { v.backend, v.stand = now, stand }
}

// lacks is why no pod may be steered to these addresses yet, whatever is proven; nil where one may. Where whole chains are made,
// this plugin would take away what only the agent knows of; the agent adds such an address, since it reads the pod's file.
func (v *verb) lacks(addrs ...netip.Addr) error {
	if v.backend.Caps().Adds || v.stand.Backend == "" || v.stand.Cover(addrs...) {
		return nil
	}
	return fmt.Errorf("the host's %s rules do not have all of %s yet: the agent adds them", v.backend, steer.JoinAddrs(addrs, ", "))
}

// inRules opens the rules of a netns for the length of one function.
func (v *verb) inRules(nsFD int, f func(rules.Rules) error) error {
	r, err := v.env.kernel.Open(v.backend, nsFD)
	if err != nil {
		return err
	}
	defer r.Close()
	if nsFD < 0 && v.backend.Caps().Programs {
		return f(byFile{r, v.stand})
	}
	return f(r)
}

// ensureSwitch makes the host's rules, or puts them back where they are gone, with all that is known of them. The first to make them
// since the node started tells the others.
func (v *verb) ensureSwitch(host rules.Rules, own steer.Host) error {
	whole := v.stand.With(own)
	stands, err := host.Whole(whole) // another call may have been faster
	if err == nil && !stands {
		err = host.Ensure(whole)
	}
	if err != nil || v.stand.Backend != "" {
		return err
	}
	return nodestate.WriteHostRules(v.conf.StateDir, nodestate.HostRules{Backend: v.backend.String(), Addresses: rules.Addresses(whole), Switch: nodestate.SwitchOf(whole)})
}

// byFile is the host's side where each look starts programs, which takes longer than the rest of an ADD. It goes by the file of those
// who made the rules, and by whether packets still come into them.
type byFile struct {
	rules.Rules
	stand nodestate.HostRules // what the host has
}

func (h byFile) stands() bool { return h.stand.Backend != "" }

// Whole tells whether the rules that the file tells of are there for the families of rs.
func (h byFile) Whole(rs steer.Ruleset) (bool, error) {
	if !h.stands() {
		return false, nil
	}
	return h.Rules.Whole(rs)
}

func (h byFile) Present() (bool, error) {
	if h.stand.Switch == nil {
		return h.stands(), nil
	}
	return h.Whole(h.stand.Switch.Host())
}

// IsUplink is false: pods' links are none, and the agent, which alone might know better, looks again.
func (byFile) IsUplink(string) (bool, error) { return false, nil }

// hostRulesName is what an operator looks for on the host, tableName in a pod's netns.
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
