package nft

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// key is a set's key in a rule: its text, and the expressions that load it from a packet into registers, beginning with reg1.
type key struct {
	text string
	load []expr.Any
}

// packetKey returns a key for a rule. If necessary, it first adds matches on the protocols whose fields the key reads.
type packetKey func(*ruleBuilder) key

func (b *ruleBuilder) in(k packetKey, set string) *ruleBuilder {
	return b.lookup(k, set, "%s @%s", false)
}

func (b *ruleBuilder) notIn(k packetKey, set string) *ruleBuilder {
	return b.lookup(k, set, "%s != @%s", true)
}

func (b *ruleBuilder) lookup(of packetKey, set, format string, invert bool) *ruleBuilder {
	k := of(b)
	return b.textf(format, k.text, set).add(k.load...).add(&expr.Lookup{SourceRegister: reg1, SetName: set, Invert: invert})
}

// addTo adds an element with the set's timeout. If the element exists, its timeout is not extended.
func (b *ruleBuilder) addTo(k packetKey, set string) *ruleBuilder {
	return b.change(k, set, "add", unix.NFT_DYNSET_OP_ADD, 0)
}

// update adds an element or restarts its timeout, which is the set's. If the set is full, the kernel skips the rest of the rule
// and goes on with the next one.
func (b *ruleBuilder) update(k packetKey, set string) *ruleBuilder { return b.updateFor(k, set, 0) }

// updateFor is update with a timeout for the element; 0 means the set's timeout.
func (b *ruleBuilder) updateFor(k packetKey, set string, timeout time.Duration) *ruleBuilder {
	return b.change(k, set, "update", unix.NFT_DYNSET_OP_UPDATE, timeout)
}

func (b *ruleBuilder) remove(k packetKey, set string) *ruleBuilder {
	return b.change(k, set, "delete", dynsetDelete, 0)
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE, since 5.4; not in x/sys/unix

func (b *ruleBuilder) change(of packetKey, set, word string, operation uint32, timeout time.Duration) *ruleBuilder {
	k := of(b)
	if timeout > 0 {
		k.text += " timeout " + nftDuration(timeout)
	}
	return b.textf("%s @%s { %s }", word, set, k.text).add(k.load...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: operation, Timeout: timeout})
}

func destKey(b *ruleBuilder) key {
	b.needFamily()
	return key{b.fam.word + " daddr", []expr.Any{b.network(b.fam.daddr, reg1)}}
}

func sourceKey(b *ruleBuilder) key {
	b.needFamily()
	return key{b.fam.word + " saddr", []expr.Any{b.network(b.fam.saddr, reg1)}}
}

func linkKey(*ruleBuilder) key {
	return key{"iifname", []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}}}
}

// homeKey is the link that a packet came in on, and its source address. The set home has the pairs that, within homeMemory, the
// rule stranger did not match.
func homeKey(b *ruleBuilder) key {
	b.needFamily()
	return key{"iif . " + b.fam.word + " saddr", []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}, b.network(b.fam.saddr, reg32b)}}
}

// connKey is a TCP connection: source address, source port and destination address.
func connKey(b *ruleBuilder) key {
	b.needFamily().needL4(steer.TCP)
	return b.fam.between(b, "tcp sport", func(register uint32) expr.Any { return transport(0, 2, register) })
}

// clientKey is a steer.Client: source address, protocol and destination address. The sets in evidence.go have it.
func clientKey(b *ruleBuilder) key {
	b.needFamily()
	return b.fam.between(b, "meta l4proto", func(register uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register} })
}

// between returns a key of the source address, one more field, and the destination address.
func (f *family) between(b *ruleBuilder, text string, field func(register uint32) expr.Any) key {
	second, third := uint32(reg32b), uint32(reg32c)
	if !f.is4() {
		second, third = reg2, reg32f
	}
	return key{f.word + " saddr . " + text + " . " + f.word + " daddr",
		[]expr.Any{b.network(f.saddr, reg1), field(second), b.network(f.daddr, third)}}
}

// clientSource and clientDest are a client's address and port in its query and in the answer. Only UDP and TCP packets reach their rules.
func clientSource(b *ruleBuilder) key { return b.addressAndPort("s", b.fam.saddr, 0) }
func clientDest(b *ruleBuilder) key   { return b.addressAndPort("d", b.fam.daddr, 2) }

func (b *ruleBuilder) addressAndPort(side string, address, port uint32) key {
	b.needFamily()
	register := uint32(reg32b)
	if !b.fam.is4() {
		register = reg2
	}
	return key{fmt.Sprintf("%s %saddr . th %sport", b.fam.word, side, side),
		[]expr.Any{b.network(address, reg1), transport(port, 2, register)}}
}

// wayKey is IP family and protocol, by which the pod table records which queries got answers (see group in pod.go). A query and
// its answer have the same key.
func wayKey(*ruleBuilder) key {
	return key{"meta nfproto . meta l4proto",
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32b}}}
}

// sameKey returns a key that the rule has already loaded into registers, so that it need not load it again.
func sameKey(of packetKey) packetKey {
	return func(b *ruleBuilder) key { return key{text: of(b).text} }
}

// portKey is IP family and source port, by which the pod table remembers TCP connections to kube-dns.
func portKey(b *ruleBuilder) key {
	text := "meta nfproto . th sport"
	if b.l4 == steer.TCP {
		text = "meta nfproto . tcp sport"
	}
	return key{text, []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, transport(0, 2, reg32b)}}
}

func tcpPortKey(b *ruleBuilder) key { return portKey(b.needL4(steer.TCP)) }
