package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer/nft"
)

// What the kernel dumps is read without a panic, whatever it is: a newer kernel may say more than this one.
func FuzzReadRule(f *testing.F) {
	for _, rs := range rulesets() {
		for _, message := range nft.RuleMessages(rs) {
			f.Add(message)
		}
	}
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 4, 0, 4, 0x80})
	f.Fuzz(func(t *testing.T, data []byte) {
		chains, err := nft.ReadRule(data)
		if err == nil && len(chains) > 1 {
			t.Errorf("one rule in %d chains", len(chains))
		}
		nft.TouchesUs(data)
	})
}
