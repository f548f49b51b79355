package nft

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// attributes appends netlink attributes to one slice. google/nftables allocates several slices for each expression; for the
// twenty rules of a pod table that would take longer than the kernel's work. A test checks that both encoders write the same
// bytes, except where the library omits flags (see write).
type attributes struct{ data []byte }

const (
	attributeHeader = 4 // struct nlattr
	attributeAlign  = 4 // NLA_ALIGNTO
)

// nest appends an attribute, whose payload is what inner appends.
func (a *attributes) nest(kind uint16, inner func()) {
	start := len(a.data)
	a.data = append(a.data, 0, 0, 0, 0)
	inner()
	binary.NativeEndian.PutUint16(a.data[start:], uint16(len(a.data)-start)) //nolint:gosec // a rule is far shorter
	binary.NativeEndian.PutUint16(a.data[start+2:], kind)
	for len(a.data)%attributeAlign != 0 {
		a.data = append(a.data, 0)
	}
}

func (a *attributes) bytes(kind uint16, b []byte) {
	a.nest(kind, func() { a.data = append(a.data, b...) })
}

func (a *attributes) text(kind uint16, s string) {
	a.nest(kind, func() { a.data = append(append(a.data, s...), 0) })
}

func (a *attributes) u32(kind uint16, v uint32) {
	a.data = binary.NativeEndian.AppendUint16(a.data, attributeHeader+4)
	a.data = binary.NativeEndian.AppendUint16(a.data, kind)
	a.data = binary.BigEndian.AppendUint32(a.data, v)
}

func (a *attributes) value(kind uint16, v []byte) {
	a.nest(unix.NLA_F_NESTED|kind, func() { a.bytes(unix.NFTA_DATA_VALUE, v) })
}

// expression appends e if it is one of the expressions that nearly all rules consist of, and reports whether it did.
func (a *attributes) expression(e expr.Any) bool {
	named := func(name string, fields func()) bool {
		a.text(unix.NFTA_EXPR_NAME, name)
		a.nest(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, fields)
		return true
	}
	switch e := e.(type) {
	case *expr.Meta:
		return named("meta", func() {
			a.u32(unix.NFTA_META_KEY, uint32(e.Key))
			if e.SourceRegister {
				a.u32(unix.NFTA_META_SREG, e.Register)
			} else {
				a.u32(unix.NFTA_META_DREG, e.Register)
			}
		})
	case *expr.Cmp:
		return named("cmp", func() {
			a.u32(unix.NFTA_CMP_SREG, e.Register)
			a.u32(unix.NFTA_CMP_OP, uint32(e.Op))
			a.value(unix.NFTA_CMP_DATA, e.Data)
		})
	case *expr.Bitwise:
		return named("bitwise", func() {
			a.u32(unix.NFTA_BITWISE_SREG, e.SourceRegister)
			a.u32(unix.NFTA_BITWISE_DREG, e.DestRegister)
			a.u32(unix.NFTA_BITWISE_LEN, e.Len)
			a.value(unix.NFTA_BITWISE_MASK, e.Mask)
			a.value(unix.NFTA_BITWISE_XOR, e.Xor)
		})
	case *expr.Immediate:
		return named("immediate", func() {
			a.u32(unix.NFTA_IMMEDIATE_DREG, e.Register)
			a.value(unix.NFTA_IMMEDIATE_DATA, e.Data)
		})
	case *expr.Payload:
		if e.OperationType == expr.PayloadWrite {
			return named("payload", func() { a.write(e) })
		}
		return named("payload", func() {
			a.u32(unix.NFTA_PAYLOAD_DREG, e.DestRegister)
			a.u32(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
			a.u32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
			a.u32(unix.NFTA_PAYLOAD_LEN, e.Len)
		})
	case *expr.Lookup:
		return named("lookup", func() {
			a.u32(unix.NFTA_LOOKUP_SREG, e.SourceRegister)
			if e.IsDestRegSet {
				a.u32(unix.NFTA_LOOKUP_DREG, e.DestRegister)
			}
			if e.Invert {
				a.u32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
			}
			a.text(unix.NFTA_LOOKUP_SET, e.SetName)
			a.u32(unix.NFTA_LOOKUP_SET_ID, e.SetID)
		})
	case *expr.Dynset:
		if e.SrcRegData != 0 || e.Invert || len(e.Exprs) > 0 {
			return false
		}
		return named("dynset", func() { a.dynset(e) })
	case *expr.Verdict:
		return named("immediate", func() { a.verdict(e) })
	}
	return false
}

// write appends the fields of an expression that writes into a packet. google/nftables v0.3.0 omits the checksum flags if the
// network header has no checksum, as in IPv6. The transport checksum would then be wrong. That has no effect on unfragmented
// packets that stay on one machine, because their checksum is not computed yet.
func (a *attributes) write(e *expr.Payload) {
	a.u32(unix.NFTA_PAYLOAD_SREG, e.SourceRegister)
	a.u32(unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
	a.u32(unix.NFTA_PAYLOAD_OFFSET, e.Offset)
	a.u32(unix.NFTA_PAYLOAD_LEN, e.Len)
	a.u32(unix.NFTA_PAYLOAD_CSUM_TYPE, uint32(e.CsumType))
	a.u32(unix.NFTA_PAYLOAD_CSUM_OFFSET, e.CsumOffset)
	a.u32(unix.NFTA_PAYLOAD_CSUM_FLAGS, e.CsumFlags)
}

func (a *attributes) dynset(e *expr.Dynset) {
	a.u32(unix.NFTA_DYNSET_SREG_KEY, e.SrcRegKey)
	a.u32(unix.NFTA_DYNSET_OP, e.Operation)
	if e.Timeout != 0 {
		a.bytes(unix.NFTA_DYNSET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(e.Timeout.Milliseconds()))) //nolint:gosec // positive
	}
	a.text(unix.NFTA_DYNSET_SET_NAME, e.SetName)
	a.u32(unix.NFTA_DYNSET_SET_ID, e.SetID)
	a.u32(unix.NFTA_DYNSET_FLAGS, 0)
}

func (a *attributes) verdict(e *expr.Verdict) {
	a.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
	a.nest(unix.NLA_F_NESTED|unix.NFTA_IMMEDIATE_DATA, func() {
		a.nest(unix.NLA_F_NESTED|unix.NFTA_DATA_VERDICT, func() {
			a.u32(unix.NFTA_VERDICT_CODE, uint32(e.Kind)) //nolint:gosec // negative ones are the kernel's own form
			if e.Chain != "" {
				a.text(unix.NFTA_VERDICT_CHAIN, e.Chain)
			}
		})
	})
}
