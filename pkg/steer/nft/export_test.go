package nft

import (
	"github.com/mdlayher/netlink"

	"github.com/neardns/neardns/pkg/steer"
)

// This file exports what the tests in package nft_test need.

// Constants for tests of the kernel's behaviour.
const (
	DrainTime   = drainTime
	LeaseBound  = leaseBound
	AskedBound  = askedBound
	AskedMemory = askedMemory
)

// Rules calls each with every rule: its chain, its text and its digest.
func Rules(rs steer.Ruleset, each func(chain, text, digest string)) error {
	for _, c := range render(rs).chains {
		for _, r := range c.rules {
			sum, err := r.digest()
			if err != nil {
				return err
			}
			each(c.name, r.text(), sum)
		}
	}
	return nil
}

// Touches is changesTable for the messages of one read.
func Touches(msgs []netlink.Message) bool { return changesTable(msgs) }

// Rewrite writes all rules of a table that is there again, in one transaction.
func (n *Nftables) Rewrite(rs steer.Ruleset) error {
	var b batch
	for _, c := range render(rs).chains {
		b.flushChain(c.name)
	}
	for _, c := range render(rs).chains {
		for _, r := range c.rules {
			b.addRule(c.name, r)
		}
	}
	return n.commit(&b)
}
