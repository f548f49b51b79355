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

// Names of back ends in configurations. Nftables and iptables' variants are also used in files.
const (
	Nftables       = "nftables"     // the default
	Iptables       = "iptables"     // the variant that the node has and uses
	IptablesNFT    = "iptables-nft" // as iptables.NFT
	IptablesLegacy = "iptables-legacy"
)

// Kind is one back end. Its zero value is nftables'.
type Kind struct {
	variant iptables.Variant
	stats   *iptables.Stats
}

// OfVariant is the back end of one variant of iptables; stats counts the runs of its programs and may be nil.
func OfVariant(v iptables.Variant, stats *iptables.Stats) Kind {
	return Kind{variant: v, stats: stats}
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

// Candidates lists the back ends for a configured word, the best first. Any word other than those above means the best one;
// only then is current called, which returns the back end whose rules the node has now. stats counts the runs of iptables'
// programs and may be nil.
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

// Recorded is the back end's name in files about pods' rules and fallback checks. It is "" for nftables, which had no name
// there before there were others.
func (k Kind) Recorded() string { return string(k.variant) }

func (k Kind) isIptables() bool { return k.variant != "" }

// Alike reports whether two back ends write the same rules in the same way. iptables' variants do, each in its own tables.
func (k Kind) Alike(other Kind) bool { return k.isIptables() == other.isIptables() }

// Caps is what the back end can do.
func (k Kind) Caps() Caps {
	if k.isIptables() {
		return Caps{Step: time.Second, Programs: true}
	}
	return Caps{Evidence: true, Leaves: true, Intercept: true, Adds: true, TakesAny: true}
}

// Needs describes, for messages, what a node must have for this back end.
func (k Kind) Needs() string {
	if k.isIptables() {
		return "the iptables back end needs iptables with the matches recent and socket and the targets MARK and CT " +
			"(modules xt_recent, xt_socket, xt_mark, xt_CT) and veth"
	}
	return "the nftables back end needs nf_tables with socket, fib, notrack and conntrack zone expressions " +
		"(Linux 5.10 or later, modules nf_tables, nft_socket, nft_fib_inet, nft_ct, nft_masq)"
}

// Supported has the kernel check everything that the rules for these addresses use, in the netns behind nsFD, -1 for the
// calling thread's; without addresses, both families. Its error wraps steer.ErrNotSupported.
func (k Kind) Supported(nsFD int, addrs ...netip.Addr) error {
	if k.isIptables() {
		b, err := iptables.Open(nsFD, k.variant, k.stats)
		if err != nil {
			return err
		}
		return errors.Join(b.Supported(addrs...), b.Close())
	}
	n, err := nft.Open(nsFD)
	if err != nil {
		return err
	}
	return errors.Join(n.Supported(addrs...), n.Close())
}

// Others lists the back ends that may have left rules from before k was chosen: one of each kind, since iptables' removes both
// variants' chains.
func (k Kind) Others() []Kind {
	if k.isIptables() {
		return []Kind{{}}
	}
	return []Kind{{variant: iptables.NFT}}
}

// OpenStanding opens the back end's rules on the host of the calling thread. If there are none, or the kernel does not support
// them, it returns nil and no error.
func (k Kind) OpenStanding() (Rules, error) {
	r, err := k.OpenHost(-1)
	if errors.Is(err, steer.ErrNotSupported) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	present, err := r.Present()
	if !k.isIptables() {
		err = nil // a kernel without nf_tables, which reports it by an error that depends on its version
	}
	if err != nil || !present {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// RemoveVariants removes, on the host of the calling thread, the chains of other variants of this back end.
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

// OpenEvidence opens the evidence that the kernel records of pods on the host of the calling thread. Only a back end with
// Caps.Evidence has it.
func (k Kind) OpenEvidence() (*nft.Nftables, error) { return nft.Open(-1) }
