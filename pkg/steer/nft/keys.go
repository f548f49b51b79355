package nft

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// What packets fill sets with, and how rules say it: each kind of key has a text, the expressions that load it, and the statements that
// match, note and forget it.

// Homes: the link that a packet came by and its source, by which the switch remembers whose way back it has looked at.

func (b *ruleBuilder) homeKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}, b.network(b.fam.saddr, reg32b)}
}

func (b *ruleBuilder) homeIn(set string) *ruleBuilder {
	return b.needFamily().say("iif . %s saddr @%s", b.fam.word, set).add(b.homeKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

// homeAdd notes the home for the set's own time, which later packets do not make longer.
func (b *ruleBuilder) homeAdd(set string) *ruleBuilder {
	return b.needFamily().say("add @%s { iif . %s saddr }", set, b.fam.word).add(b.homeKey()...).
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
	return b.needFamily().needL4(steer.TCP).say("%s @%s", b.connText(), set).add(b.connKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) connUpdate(set string) *ruleBuilder {
	return b.needFamily().needL4(steer.TCP).say("update @%s { %s }", set, b.connText()).add(b.connKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
}

func (b *ruleBuilder) connDelete(set string) *ruleBuilder {
	return b.needFamily().needL4(steer.TCP).say("delete @%s { %s }", set, b.connText()).add(b.connKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

// Clients: source address, protocol, destination address, by which the switch keeps its evidence (see evidence.go).

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
	return b.needFamily().say("%s @%s", b.clientText(), set).add(b.clientKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) clientNotIn(set string) *ruleBuilder {
	return b.needFamily().say("%s != @%s", b.clientText(), set).add(b.clientKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set, Invert: true})
}

// clientUpdate notes the client for the given time, 0 for the set's own. A full set ends the rule, so nothing may follow.
func (b *ruleBuilder) clientUpdate(set string, timeout time.Duration) *ruleBuilder {
	text := b.clientText()
	if timeout > 0 {
		text += " timeout " + nftDuration(timeout)
	}
	return b.needFamily().say("update @%s { %s }", set, text).add(b.clientKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: timeout})
}

func (b *ruleBuilder) clientDelete(set string) *ruleBuilder {
	return b.needFamily().say("delete @%s { %s }", set, b.clientText()).add(b.clientKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

// Ways: family and protocol, by which the pod table keeps its evidence of each group (see pod.go). The key is the same in a
// question and in its answer.

const wayText = "meta nfproto . meta l4proto"

func wayKey() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32b}}
}

func (b *ruleBuilder) wayIn(set string) *ruleBuilder {
	return b.say("%s @%s", wayText, set).add(wayKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

// wayUpdate notes the way in some sets. A full one ends the rule.
func (b *ruleBuilder) wayUpdate(sets ...string) *ruleBuilder {
	b.add(wayKey()...)
	for _, set := range sets {
		b.say("update @%s { %s }", set, wayText).add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
	}
	return b
}

// wayDelete follows a wayUpdate, whose key it finds in its register.
func (b *ruleBuilder) wayDelete(set string) *ruleBuilder {
	return b.say("delete @%s { %s }", set, wayText).add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
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
	return b.say("%s @%s", b.portText(), set).add(portKey()...).add(&expr.Lookup{SourceRegister: reg1, SetName: set})
}

func (b *ruleBuilder) portUpdate(set string) *ruleBuilder {
	return b.needL4(steer.TCP).say("update @%s { %s }", set, b.portText()).add(portKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: unix.NFT_DYNSET_OP_UPDATE})
}

func (b *ruleBuilder) portDelete(set string) *ruleBuilder {
	return b.needL4(steer.TCP).say("delete @%s { %s }", set, b.portText()).add(portKey()...).
		add(&expr.Dynset{SrcRegKey: reg1, SetName: set, Operation: dynsetDelete})
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE, since 5.4; not in x/sys/unix
