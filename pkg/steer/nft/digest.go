package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// Each rule has a digest of its expressions in its user data, which the kernel returns as it was written and nft ignores. Rules are
// compared by it, because kernel versions return the same expressions in different forms. The kernel never changes a rule, and a
// program that replaces or restores one writes no such digest.

// digestType is the type of the digest among a rule's user data; 0 is a comment (libnftnl).
const digestType = 'n'

// digest returns the user data of a rule with these encoded expressions. The sum is FNV-1a's, over words: attributes fill words.
func digest(exprs []byte) []byte {
	sum := uint64(14695981039346656037)
	for i := 0; i+4 <= len(exprs); i += 4 {
		sum = (sum ^ uint64(binary.NativeEndian.Uint32(exprs[i:]))) * 1099511628211
	}
	return binary.NativeEndian.AppendUint64([]byte{digestType, 8}, sum)
}

func (r rule) digest() (string, error) {
	exprs, err := r.encode()
	return string(digest(exprs)), err
}

// errUnsettled is returned to retry, which then reads the rules again.
var errUnsettled = fmt.Errorf("rules changed at each read: %w", unix.EAGAIN)

// rules returns, by chain, the user data of the neardns table's rules.
func (n *Nftables) rules() (map[string][]string, error) {
	replies, err := n.request("list rules", unix.NFT_MSG_GETRULE, netlink.Dump, nfnetlink.Named(unix.NFTA_RULE_TABLE, steer.TableName))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, m := range replies {
		chain, data, err := readRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("read rule of chain %s: %w", chain, err)
		}
		out[chain] = append(out[chain], data)
	}
	return out, nil
}

func readRule(message []byte) (chain, userData string, err error) {
	err = hostnet.Each(message, nfnetlink.HeaderSize, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_RULE_CHAIN:
			chain = dec.String()
		case unix.NFTA_RULE_USERDATA:
			userData = string(dec.Bytes())
		}
	})
	return chain, userData, err
}
