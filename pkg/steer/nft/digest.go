package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
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
