package iptables

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Variant is one of the two programs that go by the name of iptables. A kernel can hold the tables of both, apart from each
// other, and a program in a container cannot know which one the host's programs write.
type Variant string

// The two variants, as they are written in configurations and in the back end's file.
const (
	NFT    Variant = "iptables-nft"
	Legacy Variant = "iptables-legacy"
)

// Variants lists both, the one that is looked for first before the other.
func Variants() []Variant { return []Variant{NFT, Legacy} }

// Suffix is the variant's part of its programs' names: "nft" or "legacy".
func (v Variant) Suffix() string { return strings.TrimPrefix(string(v), "iptables-") }

// kubeletChains are what the kubelet keeps in mangle: the first since 1.24, the second before.
func kubeletChains() []string { return []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} }

// KubeletVariant is the variant that the kubelet hints at in the calling thread's netns. why says in words what it went by. It
// needs CAP_NET_ADMIN, changes no rule and makes no table. Since Kubernetes 1.17 the kubelet keeps a chain in the table mangle,
// with the iptables of its own host (KEP-3178, and github.com/kubernetes-sigs/iptables-wrappers, whose order of looking this
// keeps). Where nothing can be read, or no kubelet has left a chain, it is nft, as every distribution has it by now.
func KubeletVariant() (v Variant, why string) {
	const table = "mangle"
	for _, is4 := range []bool{true, false} {
		if found, err := nftChains(here, is4, table, kubeletChains()...); err == nil && len(found) > 0 {
			return NFT, "the kubelet's chain " + found[0].Name + " in iptables-nft"
		}
	}
	for _, is4 := range []bool{true, false} {
		t, err := ReadLegacy(is4, table)
		if err != nil {
			continue
		}
		for _, chain := range kubeletChains() {
			if slices.Contains(t.Chains, chain) {
				return Legacy, "the kubelet's chain " + chain + " in iptables-legacy"
			}
		}
	}
	return NFT, "no hint of a kubelet"
}

// Find lists the variants that this node has, the one to take first: that in which our own chains stand, else that which the
// kubelet hints at, else iptables-nft. It wraps exec.ErrNotFound where no iptables is there.
func Find(nsFD int) ([]Variant, error) {
	b, err := Open(nsFD, NFT, nil)
	if err != nil {
		return nil, err
	}
	defer b.Close() //nolint:errcheck // only read
	var hinted Variant
	err = hostnet.InNetNS(b.nsFD, func() error {
		hinted, _ = KubeletVariant()
		return nil
	})
	if err != nil {
		return nil, err
	}
	points := map[Variant]int{hinted: 1}
	var out []Variant
	for _, f := range Variants() {
		p := b.programs
		if p.variant = f; p.missing(true) && p.missing(false) {
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
	slices.SortStableFunc(out, func(a, c Variant) int { return points[c] - points[a] })
	return out, nil
}

// standsIn tells whether a chain of ours is in one variant's tables.
func (b *Iptables) standsIn(f Variant) (bool, error) {
	for _, is4 := range []bool{true, false} {
		for _, table := range tableOrder() {
			if names, err := b.ownIn(f, is4, table); err != nil || len(names) > 0 {
				return len(names) > 0, err
			}
		}
	}
	return false, nil
}

// Present reports whether any chain of ours is there, in either variant.
func (b *Iptables) Present() (bool, error) {
	for _, f := range Variants() {
		if there, err := b.standsIn(f); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

// RemoveOthers takes away what stands in the other variant, from before.
func (b *Iptables) RemoveOthers() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	for _, f := range Variants() {
		if f != b.variant {
			errs = append(errs, b.remove(f))
		}
	}
	return errors.Join(errs...)
}
