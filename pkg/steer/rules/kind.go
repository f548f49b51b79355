package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
)

// Names of back ends in configurations. State files have Nftables or "" (see Kind.Recorded), IptablesNFT or IptablesLegacy.
const (
	Nftables       = "nftables"
	Iptables       = "iptables"     // whichever variant of iptables the node has and uses
	IptablesNFT    = "iptables-nft" // as iptables.NFT
	IptablesLegacy = "iptables-legacy"
)

// Kind names a back end: nftables, or one variant of iptables. The zero value is nftables.
type Kind struct {
	variant iptables.Variant
	stats   *iptables.Stats
}

// OfVariant returns the back end for one variant of iptables. stats counts the runs of iptables programs; it may be nil.
func OfVariant(v iptables.Variant, stats *iptables.Stats) Kind {
	return Kind{variant: v, stats: stats}
}

// Named returns the back end with this name; "" means nftables.
func Named(name string) (Kind, error) {
	if name == "" || name == Nftables {
		return Kind{}, nil
	}
	if f := iptables.Variant(name); slices.Contains(iptables.Variants(), f) {
		return Kind{variant: f}, nil
	}
	return Kind{}, fmt.Errorf("back end %q is not known: want %s, %s or %s", name, Nftables, iptables.NFT, iptables.Legacy)
}

// Candidates lists the back ends that a configured word allows, the best first. For "auto" and any unknown word these are
// nftables, and the variants of iptables whose programs the node has. Only for these words does it call current, which returns
// the back end of the host's existing rules. stats counts the runs of iptables programs; it may be nil.
func Candidates(word string, current func() (Kind, error), stats *iptables.Stats) ([]Kind, error) {
	switch word {
	case Nftables:
		return []Kind{{}}, nil
	case IptablesNFT, IptablesLegacy:
		return []Kind{OfVariant(iptables.Variant(word), stats)}, nil
	}
	variants, err := iptables.Find(-1)
	if err != nil && (word == Iptables || !errors.Is(err, exec.ErrNotFound)) {
		return nil, err
	}
	var out []Kind
	for _, v := range variants {
		out = append(out, OfVariant(v, stats))
	}
	if word == Iptables {
		return out, nil
	}
	now, err := current()
	if err != nil {
		return nil, err
	}
	if now.isIptables() {
		return append(out, Kind{}), nil
	}
	return append([]Kind{{}}, out...), nil
}

func (k Kind) String() string {
	if k.variant == "" {
		return Nftables
	}
	return string(k.variant)
}

// Recorded returns the back end's name in state files. For nftables it is "", because older versions had no other back end and
// wrote no name.
func (k Kind) Recorded() string { return string(k.variant) }

func (k Kind) isIptables() bool { return k.variant != "" }

// Alike reports whether two back ends write the same rules in the same way: both are nftables, or both are a variant of
// iptables.
func (k Kind) Alike(other Kind) bool { return k.isIptables() == other.isIptables() }

// Caps returns what the back end can do.
func (k Kind) Caps() Caps {
	if k.isIptables() {
		return Caps{Step: time.Second, Programs: true}
	}
	return Caps{Evidence: true, Leaves: true, Intercept: true, Adds: true}
}

// Needs describes what a node must have for this back end, for error messages.
func (k Kind) Needs() string {
	if k.isIptables() {
		return "the iptables back end needs iptables with the matches recent and socket and the targets MARK and CT " +
			"(modules xt_recent, xt_socket, xt_mark, xt_CT) and veth"
	}
	return "the nftables back end needs nf_tables with socket, fib, notrack and conntrack zone expressions " +
		"(Linux 5.10 or later, modules nf_tables, nft_socket, nft_fib_inet, nft_ct, nft_masq)"
}

// Supported returns an error that wraps steer.ErrNotSupported if the kernel refuses a kind of rule that the back end needs for
// the IP families of addrs (both if there are none). It tries the rules in the netns behind nsFD; -1 means the calling thread's.
// nftables always tries both families.
func (k Kind) Supported(nsFD int, addrs ...netip.Addr) error {
	r, err := k.Open(nsFD)
	if err != nil {
		return err
	}
	return errors.Join(r.Supported(addrs...), r.Close())
}

// Other returns the back end that is not alike to k (see Alike) and may have rules from before k was chosen. For nftables it is one
// variant of iptables, because the iptables back end removes the chains of both variants.
func (k Kind) Other() Kind {
	if k.isIptables() {
		return Kind{}
	}
	return Kind{variant: iptables.NFT}
}

// OpenStanding opens the back end's existing rules in the calling thread's netns, which is the host's. If there are none, or
// the kernel does not support them, it returns nil and no error.
func (k Kind) OpenStanding() (Rules, error) {
	r, err := k.OpenHost(-1)
	if errors.Is(err, steer.ErrNotSupported) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	present, err := r.Present()
	if !k.isIptables() {
		err = nil // ignore it: without nf_tables in the kernel, listing fails with an error that depends on the kernel version
	}
	if err != nil || !present {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// RemoveVariants removes the chains that other variants of this back end have in the calling thread's netns, which is the
// host's.
func (k Kind) RemoveVariants() error {
	if !k.isIptables() {
		return nil
	}
	b, err := iptables.Open(-1, k.variant, k.stats)
	if err != nil {
		return err
	}
	return errors.Join(b.RemoveOthers(), b.Close())
}

// OpenEvidence opens the kernel's records of which clients' queries were delivered to the agent, and which passed the host's
// filters, in the calling thread's netns, which is the host's. Only a back end with Caps.Evidence keeps them.
func (k Kind) OpenEvidence() (*nft.Nftables, error) { return nft.Open(-1) }
