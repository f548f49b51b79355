package nft_test

import (
	"strings"
	"testing"

	"github.com/mdlayher/netlink"

	"github.com/neardns/neardns/pkg/steer/nft"
)

// ReadRule never panics: a newer kernel may report more than this one.
func FuzzReadRule(f *testing.F) {
	for _, rs := range rulesets() {
		for _, message := range nft.RuleMessages(rs) {
			f.Add(message)
		}
	}
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 4, 0, 4, 0x80})
	f.Fuzz(func(t *testing.T, data []byte) {
		if chain, sum, err := nft.ReadRule(data); err == nil && !strings.Contains(string(data), chain) || !strings.Contains(string(data), sum) {
			t.Errorf("chain %q, user data %q", chain, sum)
		}
		nft.Touches([]netlink.Message{{Data: data}})
	})
}
