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

// Words for a back end in configurations. The first and the names of iptables' variants stand in files as well.
const (
	Nftables       = "nftables"     // unless a node has another
	Iptables       = "iptables"     // whichever variant the node has and uses
	IptablesNFT    = "iptables-nft" // as iptables.NFT
	IptablesLegacy = "iptables-legacy"
)

// Kind is one back end. Its zero value is nftables'.
type Kind struct {
	variant iptables.Variant
	stats   *iptables.Stats
}

// OfVariant is the back end of one variant of iptables; stats counts its programs' runs and may be nil.
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

// Candidates lists the back ends that may serve by the configured word, the best first. Any other word than those above asks for the
// best one, and then stands tells in which one the node's rules stand; it is not called for the others. stats counts the runs of iptables' programs and may be nil.
func Candidates(word string, stands func() (Kind, error), stats *iptables.Stats) ([]Kind, error) {
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
	now, err := stands()
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

// Recorded is the name by which files tell of pods' rules and of proofs: "" for nftables, which they had before there was another.
func (k Kind) Recorded() string { return string(k.variant) }

func (k Kind) isIptables() bool { return k.variant != "" }

// Alike tells whether two back ends write the same rules in the same way; iptables' variants do, each in its own tables.
func (k Kind) Alike(other Kind) bool { return k.isIptables() == other.isIptables() }

// Caps tells what the back end's rules can do.
func (k Kind) Caps() Caps {
	if k.isIptables() {
		return Caps{Step: time.Second, Programs: true}
	}
	return Caps{Evidence: true, Intercept: true, Adds: true, TakesAny: true}
}

// Needs says in words what a node must have for this back end.
func (k Kind) Needs() string {
	if k.isIptables() {
		return "the iptables back end needs iptables with the matches recent and socket and the targets MARK and CT " +
			"(modules xt_recent, xt_socket, xt_mark, xt_CT) and veth"
	}
	return "the nftables back end needs nf_tables with socket, fib, notrack and conntrack zone expressions " +
		"(Linux 5.10 or later, modules nf_tables, nft_socket, nft_fib_inet, nft_ct, nft_masq)"
}

// Supported has the kernel check everything that the rules for these addresses use, in the netns behind nsFD, -1 for the calling
// thread's; for those of either family where none is named. Its error wraps steer.ErrNotSupported.
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

// Others lists the back ends whose rules may be left from before, when k is the one in use: one of each kind, since
// iptables' removes both variants' chains.
func (k Kind) Others() []Kind {
	if k.isIptables() {
		return []Kind{{}}
	}
	return []Kind{{variant: iptables.NFT}}
}

// OpenStanding opens the back end's rules on the host of the calling thread, where any stand. Where none does it returns nil and no
// error, and so it does on a kernel that cannot have them: nothing of them stands there.
func (k Kind) OpenStanding() (Rules, error) {
	r, err := k.OpenHost(-1)
	if errors.Is(err, steer.ErrNotSupported) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	present, err := r.Present()
	if !k.isIptables() {
		err = nil // a kernel without nf_tables; which error says so is the kernel's version's affair
	}
	if err != nil || !present {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// RemoveVariants takes away what stands on the host of the calling thread in another variant of the same back end.
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

// OpenEvidence opens what the kernel noted of pods on the host of the calling thread. Only a back end with Caps.Evidence has it.
func (k Kind) OpenEvidence() (*nft.Nftables, error) { return nft.Open(-1) }
