package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// batch is one nftables transaction, which takes effect as a whole or not at all. This package encodes its messages itself, for
// two reasons: google/nftables can write neither the direction of a conntrack zone nor the checksum flags of IPv6, and it
// requests an acknowledgement of every message, which costs an ADD more than the rules themselves. The library is used only to
// encode expressions, and to list other programs' chains.
type batch struct {
	table    string // "" means steer.TableName
	messages []netlink.Message
	names    []string // what each message does, for error messages
	err      error
}

const (
	inet            = unix.NFPROTO_INET
	setKeyByteOrder = 0 // NFTNL_UDATA_SET_KEYBYTEORDER of libnftnl
	hostEndian      = 1 // BYTEORDER_HOST_ENDIAN of libnftables
	nfAccept        = 1 // NF_ACCEPT of linux/netfilter.h; not in x/sys/unix
)

func (b *batch) tableName() string { return cmp.Or(b.table, steer.TableName) }

func (b *batch) add(what string, kind uint16, flags netlink.HeaderFlags, encode func(*netlink.AttributeEncoder)) {
	enc := newEncoder()
	encode(enc)
	attrs, err := enc.Encode()
	if err != nil {
		b.err = errors.Join(b.err, fmt.Errorf("encode %s: %w", what, err))
		return
	}
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append(nfnetlink.Header(inet, 0), attrs...),
	})
	b.names = append(b.names, what)
}

func (b *batch) addTable() {
	b.add("add table", unix.NFT_MSG_NEWTABLE, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_TABLE_NAME, b.tableName())
		e.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	})
}

func (b *batch) deleteTable() {
	b.add("delete table", unix.NFT_MSG_DELTABLE, 0, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, b.tableName()) })
}

func (b *batch) addCounter(name string) {
	b.add("add counter "+name, unix.NFT_MSG_NEWOBJ, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_OBJ_TABLE, b.tableName())
		e.String(unix.NFTA_OBJ_NAME, name)
		e.Uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
		e.Nested(unix.NFTA_OBJ_DATA, func(n *netlink.AttributeEncoder) error {
			n.Uint64(unix.NFTA_COUNTER_BYTES, 0)
			n.Uint64(unix.NFTA_COUNTER_PACKETS, 0)
			return nil
		})
	})
}

// addSet adds a set or map. The kernel requires an id, a number that no other new set of the batch has.
func (b *batch) addSet(s set, id uint32) {
	b.add("add set "+s.name, unix.NFT_MSG_NEWSET, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, b.tableName())
		e.String(unix.NFTA_SET_NAME, s.name)
		e.Uint32(unix.NFTA_SET_ID, id)
		e.Uint32(unix.NFTA_SET_FLAGS, s.flags())
		e.Uint32(unix.NFTA_SET_KEY_TYPE, s.keyType())
		e.Uint32(unix.NFTA_SET_KEY_LEN, s.keyLen())
		if s.value != nil {
			e.Uint32(unix.NFTA_SET_DATA_TYPE, s.value.GetNFTMagic())
			e.Uint32(unix.NFTA_SET_DATA_LEN, s.value.Bytes)
		}
		if s.timeout > 0 {
			e.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds())) //nolint:gosec // positive
		}
		if s.sweep > 0 {
			e.Uint32(unix.NFTA_SET_GC_INTERVAL, uint32(s.sweep.Milliseconds())) //nolint:gosec // a minute
		}
		if s.size > 0 {
			e.Nested(unix.NFTA_SET_DESC, func(n *netlink.AttributeEncoder) error {
				n.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
				return nil
			})
		}
		if s.ofLinks() {
			// This is only for people who list the table: without the byte order, nft prints interface names as empty strings.
			e.Bytes(unix.NFTA_SET_USERDATA, append([]byte{setKeyByteOrder, 4}, binary.NativeEndian.AppendUint32(nil, hostEndian)...))
		}
	})
}

func (b *batch) deleteSet(name string) {
	b.named("delete set", unix.NFT_MSG_DELSET, unix.NFTA_SET_NAME, name)
}

// flushSet deletes all elements of a set: the request names none (nft_set_flush, Linux 4.10).
func (b *batch) flushSet(name string) {
	b.named("flush set", unix.NFT_MSG_DELSETELEM, unix.NFTA_SET_ELEM_LIST_SET, name)
}

func (b *batch) addElements(setName string, elements []element) {
	b.elements("add elements to "+setName, unix.NFT_MSG_NEWSETELEM, netlink.Create, setName, elements)
}

func (b *batch) deleteElements(setName string, elements []element) {
	b.elements("delete elements from "+setName, unix.NFT_MSG_DELSETELEM, 0, setName, elements)
}

func (b *batch) elements(what string, kind uint16, flags netlink.HeaderFlags, setName string, elements []element) {
	if len(elements) == 0 {
		return
	}
	b.add(what, kind, flags, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_ELEM_LIST_TABLE, b.tableName())
		e.String(unix.NFTA_SET_ELEM_LIST_SET, setName)
		e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeEncoder) error {
			for _, el := range elements {
				list.Nested(unix.NFTA_LIST_ELEM, func(n *netlink.AttributeEncoder) error {
					n.Nested(unix.NFTA_SET_ELEM_KEY, dataValue(el.key))
					if el.value != nil && kind == unix.NFT_MSG_NEWSETELEM {
						n.Nested(unix.NFTA_SET_ELEM_DATA, dataValue(el.value))
					}
					return nil
				})
			}
			return nil
		})
	})
}

func dataValue(v []byte) func(*netlink.AttributeEncoder) error {
	return func(e *netlink.AttributeEncoder) error {
		e.Bytes(unix.NFTA_DATA_VALUE, v)
		return nil
	}
}

func (b *batch) addChain(c chain) {
	b.add("add chain "+c.name, unix.NFT_MSG_NEWCHAIN, netlink.Create, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, b.tableName())
		e.String(unix.NFTA_CHAIN_NAME, c.name)
		if c.hook == nil {
			return
		}
		e.Nested(unix.NFTA_CHAIN_HOOK, func(n *netlink.AttributeEncoder) error {
			n.Uint32(unix.NFTA_HOOK_HOOKNUM, c.hook.num)
			n.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.hook.priority)) //nolint:gosec // the kernel reads it as signed
			return nil
		})
		e.Uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
		e.String(unix.NFTA_CHAIN_TYPE, c.hook.kind)
	})
}

func (b *batch) deleteChain(name string) {
	b.named("delete chain", unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_NAME, name)
}

func (b *batch) flushChain(name string) {
	b.named("flush chain", unix.NFT_MSG_DELRULE, unix.NFTA_RULE_CHAIN, name)
}

// named adds a message that has only the table and the name of an object in it.
func (b *batch) named(what string, kind, attribute uint16, name string) {
	b.add(what+" "+name, kind, 0, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, b.tableName()) // the same number, 1, for all kinds of objects
		e.String(attribute, name)
	})
}

func (b *batch) addRule(chain string, r rule) {
	exprs, err := r.encode()
	if err != nil {
		b.err = errors.Join(b.err, fmt.Errorf("encode rule %s %s: %w", chain, r, err))
		return
	}
	b.add("add rule "+chain, unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, b.tableName())
		e.String(unix.NFTA_RULE_CHAIN, chain)
		e.Bytes(unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, exprs[unix.SizeofNlAttr:])
		e.Bytes(unix.NFTA_RULE_USERDATA, digest(exprs))
	})
}

// encode returns the attribute that holds the rule's expressions.
func (r rule) encode() ([]byte, error) {
	enc := newEncoder()
	enc.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
		for _, o := range r.ops {
			list.Do(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, o.encode)
		}
		return nil
	})
	return enc.Encode()
}

// encode encodes an expression. google/nftables v0.3.0 omits the checksum flags of one that writes into a packet whose network
// header has no checksum, as in IPv6. The transport checksum would then be wrong. That has no effect on unfragmented packets that
// stay on one machine, because their checksum is not computed yet.
func (o op) encode() ([]byte, error) {
	if o.zone != zoneNone {
		return named("ct", func(n *netlink.AttributeEncoder) {
			n.Uint32(unix.NFTA_CT_KEY, unix.NFT_CT_ZONE)
			if o.zone == zoneSet {
				n.Uint32(unix.NFTA_CT_SREG, reg1)
			} else {
				n.Uint32(unix.NFTA_CT_DREG, reg1)
			}
			n.Uint8(unix.NFTA_CT_DIRECTION, 0) // IP_CT_DIR_ORIGINAL
		})
	}
	if e, ok := o.expr.(*expr.Payload); ok && e.OperationType == expr.PayloadWrite {
		return named("payload", func(n *netlink.AttributeEncoder) {
			n.Uint32(unix.NFTA_PAYLOAD_SREG, e.SourceRegister)
			n.Uint32(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
			n.Uint32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
			n.Uint32(unix.NFTA_PAYLOAD_LEN, e.Len)
			n.Uint32(unix.NFTA_PAYLOAD_CSUM_TYPE, uint32(e.CsumType))
			n.Uint32(unix.NFTA_PAYLOAD_CSUM_OFFSET, e.CsumOffset)
			n.Uint32(unix.NFTA_PAYLOAD_CSUM_FLAGS, e.CsumFlags)
		})
	}
	return expr.Marshal(inet, o.expr)
}

// named encodes an expression, of which fields encodes the data.
func named(expression string, fields func(*netlink.AttributeEncoder)) ([]byte, error) {
	enc := newEncoder()
	enc.String(unix.NFTA_EXPR_NAME, expression)
	enc.Nested(unix.NFTA_EXPR_DATA, func(n *netlink.AttributeEncoder) error {
		fields(n)
		return nil
	})
	return enc.Encode()
}

func newEncoder() *netlink.AttributeEncoder {
	enc := netlink.NewAttributeEncoder()
	enc.ByteOrder = binary.BigEndian
	return enc
}

// send sends the batch and commits it. Only the last message requests an acknowledgement, because the kernel reports errors of
// the others anyway.
func (b *batch) send(conn *netlink.Conn) error { return b.transmit(conn, true) }

// rehearse makes the kernel check the whole batch and then discard it: without the end message there is no commit.
func (b *batch) rehearse(conn *netlink.Conn) error { return b.transmit(conn, false) }

func (b *batch) transmit(conn *netlink.Conn, commit bool) error {
	if b.err != nil || len(b.messages) == 0 {
		return b.err
	}
	edge := func(kind uint16) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
			Data:   nfnetlink.Header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	msgs := slices.Concat([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages)
	last := len(msgs) - 1
	if commit {
		msgs = append(msgs, edge(unix.NFNL_MSG_BATCH_END))
	}
	msgs[last].Header.Flags |= netlink.Acknowledge
	sent, err := conn.SendMessages(msgs)
	if err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	for {
		replies, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("nftables transaction of %d operations (%s … %s): %w", len(b.names), b.names[0], b.names[len(b.names)-1], err)
		}
		for _, r := range replies {
			if r.Header.Sequence == sent[last].Header.Sequence {
				return nil
			}
		}
	}
}

func (s set) flags() uint32 {
	var flags uint32
	if s.value != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.contents == dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return flags
}

// keyType returns the number by which nft knows how to print a key: six bits for each of its parts, as libnftables concatenates
// them.
func (s set) keyType() uint32 {
	var t uint32
	for _, k := range s.key {
		t = t<<6 | k.GetNFTMagic()
	}
	return t
}

// keyLen returns a key's size in bytes. Each part of a concatenated key fills whole registers of four bytes.
func (s set) keyLen() uint32 {
	if len(s.key) == 1 {
		return s.key[0].Bytes
	}
	var n uint32
	for _, k := range s.key {
		n += (k.Bytes + 3) &^ 3
	}
	return n
}
