package nft

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// The keys of sets that packets fill. Each kind of key has its text, the expressions that load it, and statements that match,
// add and delete it.

// Homes: the link that a packet arrived on and its source, for which the switch has checked the route back.

func (b *ruleBuilder) homeKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}, b.network(b.fam.saddr, reg32b)}
}

func (b *ruleBuilder) homeIn(set string) *ruleBuilder {
	return b.needFamily().textf("iif . %s saddr @%s", b.fam.word, set).add(b.homeKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

// homeAdd adds the home with the set's timeout, which later packets do not extend.
func (b *ruleBuilder) homeAdd(set string) *ruleBuilder {
	return b.needFamily().textf("add @%s { iif . %s saddr }", set, b.fam.word).add(b.homeKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_ADD})
}

// Remembered connections: source address, source port, destination address.

func (b *ruleBuilder) connKey() []expr.Any {
	second, third := uint32(reg32b), uint32(reg32c)
	if !b.fam.is4() {
		second, third = reg2, reg32f
	}
	return []expr.Any{b.network(b.fam.saddr, reg1), transport(0, 2, second), b.network(b.fam.daddr, third)}
}

func (b *ruleBuilder) connText() string {
	return fmt.Sprintf("%[1]s saddr . tcp sport . %[1]s daddr", b.fam.word)
}

func (b *ruleBuilder) connIn(set string) *ruleBuilder {
	return b.needFamily().needL4(steer.TCP).textf("%s @%s", b.connText(), set).add(b.connKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) connUpdate(set string) *ruleBuilder {
	return b.needFamily().needL4(steer.TCP).textf("update @%s { %s }", set, b.connText()).add(b.connKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
}

func (b *ruleBuilder) connDelete(set string) *ruleBuilder {
	return b.needFamily().needL4(steer.TCP).textf("delete @%s { %s }", set, b.connText()).add(b.connKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

// Clients: source address, protocol, destination address, by which the switch records its evidence (see evidence.go).

func (b *ruleBuilder) clientKey() []expr.Any {
	second, third := uint32(reg32b), uint32(reg32c)
	if !b.fam.is4() {
		second, third = reg2, reg32f
	}
	return []expr.Any{b.network(b.fam.saddr, reg1), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: second}, b.network(b.fam.daddr, third)}
}

func (b *ruleBuilder) clientText() string {
	return fmt.Sprintf("%[1]s saddr . meta l4proto . %[1]s daddr", b.fam.word)
}

func (b *ruleBuilder) clientIn(set string) *ruleBuilder {
	return b.needFamily().textf("%s @%s", b.clientText(), set).add(b.clientKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) clientNotIn(set string) *ruleBuilder {
	return b.needFamily().textf("%s != @%s", b.clientText(), set).add(b.clientKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set, Invert: true})
}

// clientUpdate adds the client for the given time; 0 means the set's timeout. If the set is full, the rule ends here, so
// nothing may follow.
func (b *ruleBuilder) clientUpdate(set string, timeout time.Duration) *ruleBuilder {
	text := b.clientText()
	if timeout > 0 {
		text += " timeout " + nftDuration(timeout)
	}
	return b.needFamily().textf("update @%s { %s }", set, text).add(b.clientKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout})
}

func (b *ruleBuilder) clientDelete(set string) *ruleBuilder {
	return b.needFamily().textf("delete @%s { %s }", set, b.clientText()).add(b.clientKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

// Ways: family and protocol, by which the pod table records its evidence of each group (see pod.go). The key of a query is also
// that of its answer.

const wayText = "meta nfproto . meta l4proto"

func wayKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32b}}
}

func (b *ruleBuilder) wayIn(set string) *ruleBuilder {
	return b.textf("%s @%s", wayText, set).add(wayKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

// wayUpdate adds the way to the sets. If one is full, the rule ends there.
func (b *ruleBuilder) wayUpdate(sets ...string) *ruleBuilder {
	b.add(wayKey()...)
	for _, set := range sets {
		b.textf("update @%s { %s }", set, wayText).add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
	}
	return b
}

// wayDelete must follow a wayUpdate, which has loaded the key into the register.
func (b *ruleBuilder) wayDelete(set string) *ruleBuilder {
	return b.textf("delete @%s { %s }", set, wayText).add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

// Ports: family and source port, by which the pod table remembers the connections of a group.

func (b *ruleBuilder) portText() string {
	if b.l4 == steer.TCP {
		return "meta nfproto . tcp sport"
	}
	return "meta nfproto . th sport"
}

func portKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, transport(0, 2, reg32b)}
}

func (b *ruleBuilder) portIn(set string) *ruleBuilder {
	return b.textf("%s @%s", b.portText(), set).add(portKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) portUpdate(set string) *ruleBuilder {
	return b.needL4(steer.TCP).textf("update @%s { %s }", set, b.portText()).add(portKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
}

func (b *ruleBuilder) portDelete(set string) *ruleBuilder {
	return b.needL4(steer.TCP).textf("delete @%s { %s }", set, b.portText()).add(portKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE, since 5.4; not in x/sys/unix
