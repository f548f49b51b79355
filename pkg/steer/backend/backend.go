// Package backend names the back ends of pkg/steer and opens them, for those who work by whichever the node has: agent and
// plugin learn of each other's choice by the name in a file (podfile.Backend).
//
// It must never choose: that is the agent's, once a start.
package backend

import (
	"fmt"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// Nftables is the back end that is used unless a node has another. The other names are iptables' variants.
const Nftables = "nftables"

// Kind is one back end. Its zero value is nftables'.
type Kind struct {
	variant iptables.Variant
	stats   *iptables.Stats
}

// Iptables is the back end of one variant; stats counts its programs' runs and may be nil.
func Iptables(variant iptables.Variant, stats *iptables.Stats) Kind {
	return Kind{variant: variant, stats: stats}
}

// Named returns the back end of a name; "" is nftables.
func Named(name string) (Kind, error) {
	if name == "" || name == Nftables {
		return Kind{}, nil
	}
	if f := iptables.Variant(name); slices.Contains(iptables.Variants(), f) {
		return Kind{variant: f}, nil
	}
	return Kind{}, fmt.Errorf("back end %q is not known: it is %s, %s or %s", name, Nftables, iptables.NFT, iptables.Legacy)
}

func (k Kind) String() string {
	if k.variant == "" {
		return Nftables
	}
	return string(k.variant)
}

// IsIptables tells the two kinds of rules apart.
func (k Kind) IsIptables() bool { return k.variant != "" }

// Variant is which iptables; "" where it is nftables.
func (k Kind) Variant() iptables.Variant { return k.variant }

// Open opens the back end for the netns behind nsFD; -1 means the calling thread's.
func (k Kind) Open(nsFD int) (steer.Table, error) {
	// Not the calls' own results: a nil pointer in an interface is not nil.
	if k.variant == "" {
		n, err := steer.OpenNftables(nsFD)
		if err != nil {
			return nil, err
		}
		return n, nil
	}
	b, err := iptables.Open(nsFD, k.variant, k.stats)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Others lists the back ends whose rules may be left from before, when k is the one in use: one of each kind, since
// iptables' removes both variants' chains.
func (k Kind) Others() []Kind {
	if k.IsIptables() {
		return []Kind{{}}
	}
	return []Kind{{variant: iptables.NFT}}
}
