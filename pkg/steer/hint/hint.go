// Package hint tells which of the two iptables a node uses: the kernel keeps the rules of iptables-nft and of iptables-legacy
// apart, and a program in a container cannot know which one the host's programs write.
//
// It must never change a rule, nor make a table by looking for it. The hint is the kubelet's: since Kubernetes 1.17 it keeps a
// chain in the table mangle, with the iptables of its own host (KEP-3178, and github.com/kubernetes-sigs/iptables-wrappers,
// whose order of looking this package keeps).
//
// Failure policy: where nothing can be read, or no kubelet has left a hint, it is nft, as every distribution has it by now.
package hint

import (
	"errors"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/legacy"
)

// Variant is one of the two, as the names of their programs have it: iptables-nft.
type Variant string

// The two.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// chains are what the kubelet keeps in mangle: the first since 1.24, the second before.
func chains() []string { return []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} }

const table = "mangle"

// Find looks in the calling thread's netns. why says in words what it went by. It needs CAP_NET_ADMIN.
func Find() (v Variant, why string) {
	for _, is4 := range []bool{true, false} {
		if chain, err := nftHint(is4); err == nil && chain != "" {
			return NFT, "the kubelet's chain " + chain + " in iptables-nft"
		}
	}
	for _, is4 := range []bool{true, false} {
		t, err := legacy.Read(is4, table)
		if err != nil {
			continue
		}
		for _, chain := range chains() {
			if slices.Contains(t.Chains, chain) {
				return Legacy, "the kubelet's chain " + chain + " in iptables-legacy"
			}
		}
	}
	return NFT, "no hint of a kubelet"
}

func nftHint(is4 bool) (string, error) {
	conn, err := nftables.New()
	if err != nil {
		return "", err
	}
	family := nftables.TableFamilyIPv6
	if is4 {
		family = nftables.TableFamilyIPv4
	}
	var errs []error
	for _, name := range chains() {
		_, err := conn.ListChain(&nftables.Table{Name: table, Family: family}, name)
		if err == nil {
			return name, nil
		}
		// google/nftables v0.3.0 flattens the kernel's error to text.
		if !strings.HasSuffix(err.Error(), unix.ENOENT.Error()) {
			errs = append(errs, err)
		}
	}
	return "", errors.Join(errs...)
}
