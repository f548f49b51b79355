package iptables

import (
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// goesByRoutes tells whether the rules that stand have it: who only looks tries nothing.
func (b *Iptables) goesByRoutes() (bool, error) {
	for _, is4 := range []bool{true, false} {
		if there, err := b.ownIn(b.variant, is4, "raw"); err != nil {
			return false, err
		} else if !slices.Contains(there, udpChain) {
			continue
		}
		have, err := b.read(is4, "raw", udpChain)
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(have[udpChain], func(rule string) bool { return strings.Contains(rule, "-m rpfilter ") }), nil
	}
	return false, nil
}

// Verify returns nil when the chains mean what rs says, a *steer.DriftError that names the differences otherwise.
func (b *Iptables) Verify(rs steer.Ruleset) error {
	routes, err := b.goesByRoutes()
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
	if err != nil {
		return err
	}
	if len(items) > 0 {
		return &steer.DriftError{Items: items}
	}
	return nil
}

// Lacks says in words which chains and jumps of a host's rules are gone: what another version put into a chain is not. On its way
// it closes the lists of leases, since the watch, which asks here, may do so where the agent may not.
func (b *Iptables) Lacks(rs steer.Host) ([]string, error) {
	scripts, err := render(rs, false) // the same chains
	if err != nil {
		return nil, err
	}
	if err := b.closeLists(); err != nil {
		return nil, err
	}
	var gone []string
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return nil, err
		}
		gone = append(gone, s.gone(have)...)
	}
	return gone, nil
}

// IsUplink reports whether the host's rules refuse what comes by this link for our addresses.
func (b *Iptables) IsUplink(name string) (bool, error) {
	for _, is4 := range []bool{true, false} {
		if there, err := b.ownIn(b.variant, is4, "raw"); err != nil {
			return false, err
		} else if len(there) == 0 {
			continue
		}
		have, err := b.read(is4, "raw")
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(have[udpChain], func(r string) bool {
			return strings.HasPrefix(r, "-i "+name+" ") && strings.Contains(r, stampPrefix+steer.CounterUplink)
		}) {
			return true, nil
		}
	}
	return false, nil
}
