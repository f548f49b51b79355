package nfnetlink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
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

// plain returns an attribute's payload without nesting flags in the attributes inside it, because kernel dumps have none.
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

// ReadRule parses a rule from a netlink message: its table, its chain and its expressions in canonical form.
func ReadRule(data []byte) (table, chain string, exprs []string, err error) {
	var inner error
	err = hostnet.Each(data, HeaderSize, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_RULE_TABLE:
			table = dec.String()
		case unix.NFTA_RULE_CHAIN:
			chain = dec.String()
		case unix.NFTA_RULE_EXPRESSIONS:
			list, err := netlink.UnmarshalAttributes(dec.Bytes())
			for _, e := range list {
				text, readErr := CanonicalExpr(e.Data)
				exprs, err = append(exprs, text), errors.Join(err, readErr)
			}
			inner = err
		}
	})
	if err = errors.Join(err, inner); err != nil {
		err = fmt.Errorf("read rule of chain %s: %w", chain, err)
	}
	return table, chain, exprs, err
}

// DigestRules writes the rules of the named chains to a hash, without their packet counts, so that equal rules give the same
// digest.
func DigestRules(to io.Writer, nsFD int, family byte, table string, chains []string) error {
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, nsFD)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read
	for _, chain := range chains {
		what := "list rules of " + chain
		replies, err := Request(conn, family, what, unix.NFT_MSG_GETRULE, netlink.Dump,
			Named(unix.NFTA_RULE_TABLE, table), Named(unix.NFTA_RULE_CHAIN, chain))
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(to, "%s %d\n", chain, len(replies)) // a hash never fails
		for _, m := range replies {
			_, _, exprs, err := ReadRule(m.Data)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			exprs = slices.DeleteFunc(exprs, func(e string) bool { return strings.HasPrefix(e, "counter(") })
			_, _ = fmt.Fprintf(to, "%q\n", exprs)
		}
	}
	return nil
}
