package nfnetlink

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// The canonical form of a rule has its expressions as netlink attributes, without what has no meaning: set IDs (the kernel
// renumbers them), attributes of value zero (some kernel versions omit them) and nesting flags. A rule that package nft encodes
// has the same form as its copy in a kernel dump. This package parses rules itself, because google/nftables cannot read one with a
// conntrack direction in it.

// setID returns the attribute type by which an expression refers to a set that the same transaction adds; 0 if it has none.
func setID(name string) uint16 {
	switch name {
	case "lookup":
		return unix.NFTA_LOOKUP_SET_ID
	case "dynset":
		return unix.NFTA_DYNSET_SET_ID
	}
	return 0
}

// CanonicalExpr returns an expression's canonical form. data has the expression's netlink attributes.
func CanonicalExpr(data []byte) (string, error) {
	attrs, err := attributes(data)
	var name string
	var fields []string
	for _, a := range attrs {
		switch kind, data := read(a); kind {
		case unix.NFTA_EXPR_NAME:
			name = string(bytes.TrimRight(data, "\x00"))
		case unix.NFTA_EXPR_DATA:
			inner, innerErr := attributes(data)
			err = errors.Join(err, innerErr)
			for _, in := range inner {
				kind, data := read(in)
				if kind == setID(name) && kind != 0 || allZero(data) {
					continue
				}
				if name == "objref" {
					data = bytes.TrimRight(data, "\x00") // google/nftables sends the name unterminated
				}
				fields = append(fields, string(hex.AppendEncode(append(strconv.AppendUint(nil, uint64(kind), 10), '='), data)))
			}
		}
	}
	if err != nil {
		return "", fmt.Errorf("read expression %s: %w", name, err)
	}
	slices.Sort(fields)
	return name + "(" + strings.Join(fields, " ") + ")", nil
}

// attributes splits data into netlink attributes, each with its header.
func attributes(data []byte) (out [][]byte, err error) {
	for len(data) > 0 {
		size := 0
		if len(data) >= unix.NLA_HDRLEN {
			size = int(binary.NativeEndian.Uint16(data))
		}
		if size < unix.NLA_HDRLEN || size > len(data) {
			return out, errors.New("netlink attribute of an impossible length")
		}
		out = append(out, data[:size])
		data = data[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(data)):]
	}
	return out, nil
}

// read returns an attribute's type and payload without flags: kernel dumps have none.
func read(attribute []byte) (kind uint16, data []byte) {
	kind, data = binary.NativeEndian.Uint16(attribute[2:]), attribute[unix.NLA_HDRLEN:]
	if kind&unix.NLA_F_NESTED != 0 {
		data = bytes.Clone(data)
		inner, _ := attributes(data)
		for _, a := range inner {
			kind, data := read(a)
			binary.NativeEndian.PutUint16(a[2:], kind)
			copy(a[unix.NLA_HDRLEN:], data)
		}
	}
	return kind &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER), data
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// ReadRule parses a rule from a netlink message: its table, its chain and its expressions in canonical form.
func ReadRule(data []byte) (table, chain string, exprs []string, err error) {
	attrs, err := attributes(data[min(HeaderSize, len(data)):])
	for _, a := range attrs {
		switch kind, data := read(a); kind {
		case unix.NFTA_RULE_TABLE:
			table = string(bytes.TrimRight(data, "\x00"))
		case unix.NFTA_RULE_CHAIN:
			chain = string(bytes.TrimRight(data, "\x00"))
		case unix.NFTA_RULE_EXPRESSIONS:
			list, listErr := attributes(data)
			err = errors.Join(err, listErr)
			for _, e := range list {
				text, readErr := CanonicalExpr(e[unix.NLA_HDRLEN:])
				exprs, err = append(exprs, text), errors.Join(err, readErr)
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("read rule of chain %s: %w", chain, err)
	}
	return table, chain, exprs, err
}

// DigestRules writes the rules of some chains, as the kernel reports their expressions but without packet counts, to these chains'
// hashes, so that equal rules give the same digest.
func DigestRules(to map[string]io.Writer, nsFD int, family byte, table string) error {
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, nsFD)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read
	for _, chain := range slices.Sorted(maps.Keys(to)) {
		what := "list rules of " + chain
		replies, err := Request(conn, family, what, unix.NFT_MSG_GETRULE, netlink.Dump,
			Named(unix.NFTA_RULE_TABLE, table), Named(unix.NFTA_RULE_CHAIN, chain))
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(to[chain], "%s %s %d\n", table, chain, len(replies)) // a hash never fails
		for _, m := range replies {
			if err := hostnet.Each(m.Data, HeaderSize, func(dec *netlink.AttributeDecoder) {
				if dec.Type() != unix.NFTA_RULE_EXPRESSIONS {
					return
				}
				dec.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						if e := list.Bytes(); !bytes.HasPrefix(e[min(unix.NLA_HDRLEN, len(e)):], []byte("counter\x00")) {
							_, _ = fmt.Fprintf(to[chain], "%x\n", e)
						}
					}
					return nil
				})
			}); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return nil
}
