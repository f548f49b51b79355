package nft

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// op is one expression of a rule: either expr, or one of the two "ct zone" expressions that google/nftables v0.3.0 cannot write,
// because it omits their direction.
type op struct {
	expr expr.Any
	zone zoneOp
}

type zoneOp uint8

const (
	zoneNone zoneOp = iota
	zoneLoad        // ct original zone => reg 1
	zoneSet         // ct original zone set reg 1
)

// Numbers of the registers for the parts of a set's key. After a 4-byte part, the next part is in reg32b and then in reg32c.
// After a 16-byte part, it is in reg2, and after that in reg32f.
const (
	reg1   = unix.NFT_REG_1
	reg2   = unix.NFT_REG_2
	reg32b = 9  // NFT_REG32_01, the second 4 bytes
	reg32c = 10 // NFT_REG32_02
	reg32f = 13 // NFT_REG32_05, after a 16-byte address and a part of 4 bytes
)

// family has what differs between IPv4 and IPv6 in a rule.
type family struct {
	suffix       string // end of the names of this IP family's chains and sets
	word         string // ip or ip6
	nfproto      byte
	addrType     nftables.SetDatatype
	saddr, daddr uint32 // offsets in the network header
	size         uint32
	csumType     expr.PayloadCsumType
	csumOffset   uint32
}

func (f *family) is4() bool { return f.size == 4 }

func families() [2]*family {
	return [2]*family{
		{suffix: "4", word: "ip", nfproto: unix.NFPROTO_IPV4, addrType: nftables.TypeIPAddr,
			saddr: 12, daddr: 16, size: 4, csumType: expr.CsumTypeInet, csumOffset: 10},
		{suffix: "6", word: "ip6", nfproto: unix.NFPROTO_IPV6, addrType: nftables.TypeIP6Addr,
			saddr: 8, daddr: 24, size: 16, csumType: expr.CsumTypeNone},
	}
}

// ruleBuilder builds one rule. It adds the match on the network or transport protocol once, as nft does, so that nft lists the
// rule as it is written here. With this match, a rule never reads bytes of the other IP family.
type ruleBuilder struct {
	fam *family
	rule
	nf bool
	l4 steer.Protocol
}

func (f *family) rule() *ruleBuilder { return &ruleBuilder{fam: f} }

// anyFamily begins a rule for both IP families, which must not read an address.
func anyFamily() *ruleBuilder { return &ruleBuilder{} }

// textf adds to the rule's text. It must not be inlined: inlined in every part of every rule, it would make the plugin 130 kB
// larger.
//
//go:noinline
func (b *ruleBuilder) textf(format string, args ...any) *ruleBuilder {
	b.phrases = append(b.phrases, phrase{format, args})
	return b
}

func (b *ruleBuilder) add(es ...expr.Any) *ruleBuilder {
	for _, e := range es {
		b.ops = append(b.ops, op{expr: e})
	}
	return b
}

func (b *ruleBuilder) end() rule {
	return b.rule
}

func equals(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: data} }

func (b *ruleBuilder) needFamily() *ruleBuilder {
	if !b.nf {
		b.nf = true
		b.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, equals([]byte{b.fam.nfproto}))
	}
	return b
}

func (b *ruleBuilder) needL4(p steer.Protocol) *ruleBuilder {
	if b.l4 != p {
		b.l4 = p
		b.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equals([]byte{byte(p)}))
	}
	return b
}

func (b *ruleBuilder) network(offset, register uint32) *expr.Payload {
	return load(expr.PayloadBaseNetworkHeader, offset, b.fam.size, register)
}

func transport(offset, length, register uint32) *expr.Payload {
	return load(expr.PayloadBaseTransportHeader, offset, length, register)
}

func load(header expr.PayloadBase, offset, length, register uint32) *expr.Payload {
	return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: header, Offset: offset, Len: length}
}

func (b *ruleBuilder) nfproto() *ruleBuilder {
	word := "ipv6"
	if b.fam.is4() {
		word = "ipv4"
	}
	return b.needFamily().textf("meta nfproto %s", word)
}

func (b *ruleBuilder) proto(p steer.Protocol) *ruleBuilder {
	return b.needL4(p).textf("meta l4proto %s", p)
}

func (b *ruleBuilder) daddr(a netip.Addr) *ruleBuilder {
	return b.needFamily().textf("%s daddr %s", b.fam.word, a).add(b.network(b.fam.daddr, reg1), equals(a.AsSlice()))
}

func (b *ruleBuilder) saddr(a netip.Addr) *ruleBuilder {
	return b.needFamily().textf("%s saddr %s", b.fam.word, a).add(b.network(b.fam.saddr, reg1), equals(a.AsSlice()))
}

func (b *ruleBuilder) dport(p steer.Protocol, port uint16) *ruleBuilder {
	return b.needL4(p).portOf(p.String(), "dport", 2, port)
}

func (b *ruleBuilder) sport(p steer.Protocol, port uint16) *ruleBuilder {
	return b.needL4(p).portOf(p.String(), "sport", 0, port)
}

func (b *ruleBuilder) portOf(protocol, word string, offset uint32, port uint16) *ruleBuilder {
	return b.textf("%s %s %d", protocol, word, port).add(transport(offset, 2, reg1), equals(binary.BigEndian.AppendUint16(nil, port)))
}

// notICMP matches every transport protocol except the family's ICMP.
func (b *ruleBuilder) notICMP() *ruleBuilder {
	word, number := "ipv6-icmp", byte(unix.IPPROTO_ICMPV6)
	if b.fam.is4() {
		word, number = "icmp", unix.IPPROTO_ICMP
	}
	return b.textf("meta l4proto != %s", word).add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{number}})
}

// anySport and anyDport match a port of any transport protocol that has its ports where UDP and TCP have them.
func (b *ruleBuilder) anySport(port uint16) *ruleBuilder {
	return b.needFamily().portOf("th", "sport", 0, port)
}
func (b *ruleBuilder) anyDport(port uint16) *ruleBuilder {
	return b.needFamily().portOf("th", "dport", 2, port)
}

// secret matches the secret in a control packet: in UDP the first eight bytes of the payload, in TCP, where the packet has no
// payload, the sequence and acknowledgement numbers.
func (b *ruleBuilder) secret(p steer.Protocol, s steer.Secret) *ruleBuilder {
	b.hidden = true
	offset := uint32(4)
	if p == steer.UDP {
		offset = 8
		b.needL4(p).textf("meta l4proto %s @th,64,64 %#x", p, uint64(s))
	} else {
		b.needL4(p).textf("tcp sequence %d tcp ackseq %d", uint64(s)>>32, uint64(s)&math.MaxUint32)
	}
	return b.add(transport(offset, 8, reg1), equals(s.Bytes()))
}

func (b *ruleBuilder) iif(name string) *ruleBuilder {
	return b.textf("iifname %q", name).add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, equals(ifname(name)))
}

func (b *ruleBuilder) oifNot(name string) *ruleBuilder {
	return b.textf("oifname != %q", name).add(&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: ifname(name)})
}

// stranger matches a packet if the kernel has no route to its source address by the link that it came in on (RFC 3704, section
// 2.2). It does not match if the route leads over a link in the set detours (see steer.Host.Detours).
func (b *ruleBuilder) stranger(detours string) *ruleBuilder {
	return b.textf("fib saddr . iif oif 0 fib saddr oifname != @%s", detours).add(
		&expr.Fib{Register: reg1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, equals(make([]byte, 4)),
		&expr.Fib{Register: reg1, ResultOIFNAME: true, FlagSADDR: true}, &expr.Lookup{SourceRegister: reg1, SetName: detours, Invert: true})
}

// boundSocket matches if a socket is bound to exactly the packet's destination ("wildcard 0"). It never matches the third
// packet of a TCP handshake, whose socket is only a request socket.
func (b *ruleBuilder) boundSocket() *ruleBuilder {
	return b.socket("wildcard", expr.SocketKeyWildcard, 0)
}

// anySocket matches if the kernel finds a socket for the packet that is not transparent, for TCP also a request socket. The
// agent's sockets are not transparent, unless there are ceded addresses.
func (b *ruleBuilder) anySocket() *ruleBuilder {
	return b.socket("transparent", expr.SocketKeyTransparent, 0)
}

// transparentSocket matches if the kernel finds a socket for the packet that has IP_TRANSPARENT.
func (b *ruleBuilder) transparentSocket() *ruleBuilder {
	return b.socket("transparent", expr.SocketKeyTransparent, 1)
}

func (b *ruleBuilder) socket(word string, k expr.SocketKey, value byte) *ruleBuilder {
	return b.textf("socket %s %d", word, value).add(&expr.Socket{Key: k, Register: reg1}, equals([]byte{value}))
}

// tcpSYN and tcpSYNACK are bits of the TCP flags (RFC 9293, section 3.1).
const tcpSYN, tcpSYNACK = 0x02, 0x12

func (b *ruleBuilder) syn(is bool) *ruleBuilder {
	if is {
		return b.flags(expr.CmpOpEq, "", "syn", tcpSYN)
	}
	return b.flags(expr.CmpOpNeq, "!= ", "syn", tcpSYN)
}

func (b *ruleBuilder) notSynAck() *ruleBuilder {
	return b.flags(expr.CmpOpNeq, "!= ", "syn,ack", tcpSYNACK)
}

// flags adds a match that compares only the flags SYN and ACK.
func (b *ruleBuilder) flags(operator expr.CmpOp, word, names string, flags byte) *ruleBuilder {
	return b.needL4(steer.TCP).textf("tcp flags %s%s / syn,ack", word, names).add(transport(13, 1, reg1),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{tcpSYNACK}, Xor: []byte{0}},
		&expr.Cmp{Op: operator, Register: reg1, Data: []byte{flags}})
}

func (b *ruleBuilder) root() *ruleBuilder {
	return b.textf("meta skuid 0").add(&expr.Meta{Key: expr.MetaKeySKUID, Register: reg1}, equals(binary.NativeEndian.AppendUint32(nil, 0)))
}

func (b *ruleBuilder) mark(mark uint32) *ruleBuilder {
	return b.textf("meta mark 0x%08x", mark).add(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		equals(binary.NativeEndian.AppendUint32(nil, mark)))
}

func (b *ruleBuilder) replyInZone(zone uint16) *ruleBuilder {
	const directionReply = 1 // IP_CT_DIR_REPLY
	b.textf("ct direction reply ct original zone %d", zone)
	b.add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, equals([]byte{directionReply}))
	b.ops = append(b.ops, op{zone: zoneLoad})
	return b.add(equals(binary.NativeEndian.AppendUint16(nil, zone)))
}

// write returns the expression that writes register 1 into the packet as an address. The kernel then updates IPv4's header checksum
// and the pseudo-header's part of the transport checksum. In later fragments, which have no transport checksum, it updates only the
// former (Linux 5.18, stable 5.10.113).
func (b *ruleBuilder) write(offset uint32) *expr.Payload {
	return &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg1,
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: b.fam.size,
		CsumType: b.fam.csumType, CsumOffset: b.fam.csumOffset, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR}
}

// setDaddrFrom replaces the destination address by its value in map m. If the map does not have the address, the kernel skips the
// rest of the rule.
func (b *ruleBuilder) setDaddrFrom(m string) *ruleBuilder { return b.setFrom("daddr", b.fam.daddr, m) }
func (b *ruleBuilder) setSaddrFrom(m string) *ruleBuilder { return b.setFrom("saddr", b.fam.saddr, m) }

func (b *ruleBuilder) setFrom(word string, offset uint32, m string) *ruleBuilder {
	return b.needFamily().textf("%[1]s %[2]s set %[1]s %[2]s map @%[3]s", b.fam.word, word, m).add(b.network(offset, reg1),
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: m}, b.write(offset))
}

func (b *ruleBuilder) setDaddr(a netip.Addr) *ruleBuilder { return b.set("daddr", b.fam.daddr, a) }
func (b *ruleBuilder) setSaddr(a netip.Addr) *ruleBuilder { return b.set("saddr", b.fam.saddr, a) }

func (b *ruleBuilder) set(word string, offset uint32, a netip.Addr) *ruleBuilder {
	return b.needFamily().textf("%s %s set %s", b.fam.word, word, a).add(&expr.Immediate{Register: reg1, Data: a.AsSlice()}, b.write(offset))
}

func (b *ruleBuilder) setZone(zone uint16) *ruleBuilder {
	b.textf("ct original zone set %d", zone).add(&expr.Immediate{Register: reg1, Data: binary.NativeEndian.AppendUint16(nil, zone)})
	b.ops = append(b.ops, op{zone: zoneSet})
	return b
}

// clearMark sets a packet's mark to 0, so that no other program's rules or routes see neardns's mark.
func (b *ruleBuilder) clearMark() *ruleBuilder {
	return b.textf("meta mark set 0x00000000").add(&expr.Immediate{Register: reg1, Data: make([]byte, 4)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1})
}

func (b *ruleBuilder) count(name string) *ruleBuilder {
	return b.textf("counter name %q", name).add(&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name})
}

func (b *ruleBuilder) notrack() *ruleBuilder    { return b.textf("notrack").add(&expr.Notrack{}) }
func (b *ruleBuilder) masquerade() *ruleBuilder { return b.textf("masquerade").add(&expr.Masq{}) }

func (b *ruleBuilder) accept() rule { return b.verdict("accept", expr.VerdictAccept, "") }
func (b *ruleBuilder) drop() rule   { return b.verdict("drop", expr.VerdictDrop, "") }
func (b *ruleBuilder) ret() rule    { return b.verdict("return", expr.VerdictReturn, "") }
func (b *ruleBuilder) goTo(chain string) rule {
	return b.verdict("goto "+chain, expr.VerdictGoto, chain)
}

func (b *ruleBuilder) verdict(text string, kind expr.VerdictKind, chain string) rule {
	return b.textf("%s", text).add(&expr.Verdict{Kind: kind, Chain: chain}).end()
}

// ifname returns an interface name in the form that the kernel compares: 16 bytes, filled up with zeros.
func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// nftDuration formats a duration as nft prints it (5m, 10s, 800ms, 1s500ms).
func nftDuration(d time.Duration) string {
	var s strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			fmt.Fprintf(&s, "%d%s", n, u.name)
			d -= n * u.unit
		}
	}
	return s.String()
}
