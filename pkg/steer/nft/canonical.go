package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// The canonical form of a rule is its expressions as netlink attributes, without everything that has no meaning: set ids (the
// kernel renumbers them), attributes of value zero (kernel versions differ in whether they write them) and nesting flags. It is
// the same for a rule that this package would write and for the same rule in a kernel dump. Rules are read here because
// google/nftables cannot read one with a conntrack direction in it.

func (r rule) canonical() (string, error) {
	parts := make([]string, 0, len(r.ops))
	for _, o := range r.ops {
		var a attributes
		err := o.write(&a)
		data := a.data
		if err != nil {
			return "", err
		}
		text, err := canonicalExpr(data)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; "), nil
}

// setID is the attribute by which an expression refers to a set of the same transaction; 0 if it has none.
func setID(name string) uint16 {
	switch name {
	case "lookup":
		return unix.NFTA_LOOKUP_SET_ID
	case "dynset":
		return unix.NFTA_DYNSET_SET_ID
	}
	return 0
}

func canonicalExpr(data []byte) (string, error) {
	attrs, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return "", fmt.Errorf("read expression: %w", err)
	}
	var name string
	var fields []string
	for _, a := range attrs {
		switch a.Type &^ unix.NLA_F_NESTED {
		case unix.NFTA_EXPR_NAME:
			name = strings.TrimRight(string(a.Data), "\x00")
		case unix.NFTA_EXPR_DATA:
			inner, err := netlink.UnmarshalAttributes(a.Data)
			if err != nil {
				return "", fmt.Errorf("read expression %s: %w", name, err)
			}
			for _, in := range inner {
				kind := in.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
				data := plain(in)
				if kind == setID(name) && kind != 0 || allZero(data) {
					continue
				}
				if name == "objref" {
					data = bytes.TrimRight(data, "\x00") // google/nftables sends the name unterminated
				}
				fields = append(fields, fmt.Sprintf("%d=%x", kind, data))
			}
		}
	}
	slices.Sort(fields)
	return name + "(" + strings.Join(fields, " ") + ")", nil
}

// plain is an attribute's payload without the nesting flags inside it: kernel dumps have none.
func plain(a netlink.Attribute) []byte {
	if a.Type&unix.NLA_F_NESTED == 0 {
		return a.Data
	}
	inner, err := netlink.UnmarshalAttributes(a.Data)
	if err != nil {
		return a.Data
	}
	for i := range inner {
		inner[i].Data = plain(inner[i])
		inner[i].Type &^= unix.NLA_F_NESTED
	}
	data, err := netlink.MarshalAttributes(inner)
	if err != nil {
		return a.Data
	}
	return data
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// errUnsettled makes retry read the rules again.
var errUnsettled = fmt.Errorf("rules changed at each read: %w", unix.EAGAIN)

// rules returns the canonical rules of all chains of the neardns table.
func (n *Nftables) rules() (map[string][]string, error) {
	replies, err := n.request("list rules", unix.NFT_MSG_GETRULE, netlink.Dump, named(unix.NFTA_RULE_TABLE, steer.TableName))
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, m := range replies {
		if err := readRule(m.Data, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readRule(data []byte, out map[string][]string) error {
	const header = 4 // nfgenmsg
	if len(data) < header {
		return errors.New("list rules: short message")
	}
	dec, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return fmt.Errorf("read rule: %w", err)
	}
	dec.ByteOrder = binary.BigEndian
	var table, chain string
	var exprs []string
	for dec.Next() {
		switch dec.Type() {
		case unix.NFTA_RULE_TABLE:
			table = dec.String()
		case unix.NFTA_RULE_CHAIN:
			chain = dec.String()
		case unix.NFTA_RULE_EXPRESSIONS:
			list, err := netlink.UnmarshalAttributes(dec.Bytes())
			if err != nil {
				return fmt.Errorf("read rule of chain %s: %w", chain, err)
			}
			for _, e := range list {
				text, err := canonicalExpr(e.Data)
				if err != nil {
					return err
				}
				exprs = append(exprs, text)
			}
		}
	}
	if err := dec.Err(); err != nil {
		return fmt.Errorf("read rule of chain %s: %w", chain, err)
	}
	if table == steer.TableName {
		out[chain] = append(out[chain], strings.Join(exprs, "; "))
	}
	return nil
}
