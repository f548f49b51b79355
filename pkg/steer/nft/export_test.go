package nft

import (
	"github.com/mdlayher/netlink"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
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

// RuleMessages are the payloads of the messages that add a description's rules.
func RuleMessages(rs steer.Ruleset) [][]byte {
	var b batch
	for _, c := range render(rs).chains {
		for _, r := range c.rules {
			b.addRule(c.name, r)
		}
	}
	var out [][]byte
	for _, m := range b.messages {
		out = append(out, m.Data)
	}
	return out
}

// ReadRule reads the message that describes a rule.
func ReadRule(data []byte) (chain, userData string, err error) {
	var r loadedRule
	err = nfnetlink.Each(netlink.Message{Data: data}, r.read)
	return r.chain, r.userData, err
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
