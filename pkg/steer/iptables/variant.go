package iptables

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Variant is one of the two implementations of iptables. A kernel can have the tables of both, independently of each other, and
// a program in a container cannot know which of them its host's programs use.
type Variant string

// The two variants, with the names that configurations and state files use.
const (
	NFT    Variant = "iptables-nft"
	Legacy Variant = "iptables-legacy"
)

// Variants lists both variants, in the order in which they are tried.
func Variants() []Variant { return []Variant{NFT, Legacy} }

// Suffix returns the part of program names that stands for the variant: "nft" or "legacy".
func (v Variant) Suffix() string { return strings.TrimPrefix(string(v), "iptables-") }

// kubeletChains returns the names of the chain that the kubelet has in table mangle: since Kubernetes 1.24, and before.
func kubeletChains() []string { return []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} }

// KubeletVariant returns the variant that the kubelet uses, by its chain in the calling thread's netns; why describes the
// evidence. Since Kubernetes 1.17 the kubelet keeps a chain in table mangle, with its host's iptables (KEP-3178). The order of
// the checks is that of github.com/kubernetes-sigs/iptables-wrappers. If there is no such chain, or none can be read, the result
// is NFT, the default of current distributions. It needs CAP_NET_ADMIN, and changes nothing.
func KubeletVariant() (v Variant, why string) {
	for _, v := range Variants() {
		for _, is4 := range []bool{true, false} {
			if found, err := chainsOf(here, v, is4, "mangle", kubeletChains()...); err == nil && len(found) > 0 {
				return v, "the kubelet's chain " + found[0] + " in " + string(v)
			}
		}
	}
	return NFT, "no kubelet's chain found"
}

// Find lists the variants whose programs this node has, the best first: the one with this back end's chains, then the kubelet's,
// then iptables-nft. Its error wraps exec.ErrNotFound if the node has no iptables.
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
		own, err := b.hasChains(f)
		if err != nil {
			return nil, err
		} else if own {
			points[f] += 2
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("neither %s nor %s is installed on this node (in a container: in the agent's image): %w",
			NFT, Legacy, exec.ErrNotFound)
	}
	slices.SortStableFunc(out, func(a, c Variant) int { return points[c] - points[a] })
	return out, nil
}

// hasChains reports whether a table of variant f has any of this back end's chains.
func (b *Iptables) hasChains(f Variant) (bool, error) {
	for _, is4 := range []bool{true, false} {
		for _, table := range tableOrder() {
			if names, err := b.ownIn(f, is4, table); err != nil || len(names) > 0 {
				return len(names) > 0, err
			}
		}
	}
	return false, nil
}

// Present reports whether a table of either variant has any of this back end's chains.
func (b *Iptables) Present() (bool, error) {
	for _, f := range Variants() {
		if there, err := b.hasChains(f); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

// RemoveOthers removes this back end's chains from the tables of the other variant.
func (b *Iptables) RemoveOthers() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.variant == NFT {
		return b.remove(Legacy)
	}
	return b.remove(NFT)
}
