package iptables

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/hint"
)

// Find lists the flavours that this node has, the one to take first: that in which our own chains stand, else that which the
// kubelet hints at, else iptables-nft. It wraps exec.ErrNotFound where no iptables is there.
func Find(nsFD int) ([]Flavour, error) {
	b, err := Open(nsFD, NFT, nil)
	if err != nil {
		return nil, err
	}
	defer b.Close() //nolint:errcheck // only read
	hinted := NFT
	err = steer.InNetNS(b.nsFD, func() error {
		if v, _ := hint.Find(); v == hint.Legacy {
			hinted = Legacy
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	points := map[Flavour]int{hinted: 1}
	var out []Flavour
	for _, f := range Flavours() {
		p := b.programs
		if p.flavour = f; p.missing(true) && p.missing(false) {
			continue
		}
		out = append(out, f)
		own, err := b.standsIn(f)
		if err != nil {
			return nil, err
		} else if own {
			points[f] += 2
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("neither %s nor %s is on this node (in a container: in the agent's image): %w", NFT, Legacy, exec.ErrNotFound)
	}
	slices.SortStableFunc(out, func(a, c Flavour) int { return points[c] - points[a] })
	return out, nil
}

// standsIn tells whether a chain of ours is in one flavour's tables.
func (b *Iptables) standsIn(f Flavour) (bool, error) {
	for _, is4 := range []bool{true, false} {
		for _, table := range tableOrder() {
			if names, err := b.ownIn(f, is4, table); err != nil || len(names) > 0 {
				return len(names) > 0, err
			}
		}
	}
	return false, nil
}

// Present reports whether any chain of ours is there, in either flavour.
func (b *Iptables) Present() (bool, error) {
	for _, f := range Flavours() {
		if there, err := b.standsIn(f); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

// RemoveOthers takes away what stands in the other flavour, from before.
func (b *Iptables) RemoveOthers() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, f := range Flavours() {
		if f != b.flavour {
			errs = append(errs, b.remove(f))
		}
	}
	return errors.Join(errs...)
}
