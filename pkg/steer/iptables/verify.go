package iptables

import (
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// anyUDPRule reports whether, for either IP family, neardns's chain for UDP in table raw has a rule for which matches returns
// true.
func (b *Iptables) anyUDPRule(matches func(rule string) bool) (bool, error) {
	for _, is4 := range []bool{true, false} {
		if there, err := b.ownIn(b.variant, is4, "raw"); err != nil {
			return false, err
		} else if !slices.Contains(there, udpChain) {
			continue
		}
		have, err := b.read(is4, "raw", udpChain)
		if err != nil || slices.ContainsFunc(have[udpChain], matches) {
			return err == nil, err
		}
	}
	return false, nil
}

// Verify returns nil if the chains are as rs describes them. If they differ, the error is a *steer.DriftError that names the
// differences. It compares the chains' stamps and numbers of rules (see chain.differs), not each rule.
func (b *Iptables) Verify(rs steer.Ruleset) error {
	// Do not try whether the kernel has the match rpfilter, because Verify changes nothing. If the kernel has it and there are no
	// detours, the existing rules use it.
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

// Missing describes the chains of a host's rules that are missing or empty, and the missing jumps to them. A chain with other
// rules, which may be another version's, does not count. Missing also restricts access to the lease lists, because the
// installer's watch, which calls it, may be permitted to do so when the agent is not.
func (b *Iptables) Missing(rs steer.Host) ([]string, error) {
	scripts, err := render(rs, false) // with and without the match the chains have the same names
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

// IsUplink reports whether the host's rules treat this link as leading away from the node, so that clients behind it are not
// served.
func (b *Iptables) IsUplink(name string) (bool, error) {
	return b.anyUDPRule(func(rule string) bool {
		return strings.HasPrefix(rule, "-i "+name+" ") && strings.Contains(rule, stampPrefix+steer.CounterUplink)
	})
}
