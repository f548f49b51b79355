package iptables

import (
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// anyUDPRule reports whether a family has a rule in the switch's chain for UDP that is as wanted.
func (b *Iptables) anyUDPRule(is func(rule string) bool) (bool, error) {
	for _, is4 := range []bool{true, false} {
		if there, err := b.ownIn(b.variant, is4, "raw"); err != nil {
			return false, err
		} else if !slices.Contains(there, udpChain) {
			continue
		}
		have, err := b.read(is4, "raw", udpChain)
		if err != nil || slices.ContainsFunc(have[udpChain], is) {
			return err == nil, err
		}
	}
	return false, nil
}

// Verify returns nil if the chains mean the same as rs, else a *steer.DriftError that names the differences.
func (b *Iptables) Verify(rs steer.Ruleset) error {
	// A read-only check does not try whether the kernel has the match; the rules show it.
	routes, err := b.anyUDPRule(func(rule string) bool { return strings.Contains(rule, "-m rpfilter ") })
	if err != nil {
		return err
	}
	scripts, err := render(rs, routes)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	items, err := b.drift(scripts)
	if err != nil || len(items) == 0 {
		return err
	}
	return &steer.DriftError{Items: items}
}

// Missing describes which chains and jumps of a host's rules are missing; it does not consider what another version put into a
// chain. It also restricts the lists of leases, because the watch, which calls it, may be allowed to do so when the agent is
// not.
func (b *Iptables) Missing(rs steer.Host) ([]string, error) {
	scripts, err := render(rs, false) // the same chains
	if err != nil {
		return nil, err
	}
	if err := b.restrictLists(); err != nil {
		return nil, err
	}
	var gone []string
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return nil, err
		}
		gone = append(gone, s.missing(have)...)
	}
	return gone, nil
}

// IsUplink reports whether the host's rules treat this link as leading away from the node.
func (b *Iptables) IsUplink(name string) (bool, error) {
	return b.anyUDPRule(func(rule string) bool {
		return strings.HasPrefix(rule, "-i "+name+" ") && strings.Contains(rule, stampPrefix+steer.CounterUplink)
	})
}
