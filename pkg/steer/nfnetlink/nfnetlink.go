// Package nfnetlink reads nf_tables rules and events from the kernel over netlink, for both back ends, because iptables-nft
// writes its rules into nf_tables, too.
//
// It guarantees that a dump which the kernel reports as interrupted is an error. It changes no rule.
//
// On failure it returns an error. An object that does not exist is no error: the result is then empty.
package nfnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// headerSize is the size of Header.
const headerSize = 4

// Header returns the header of an nfnetlink message: family, version and resource ID (big endian).
func Header(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// Request sends one request and returns the kernel's replies. If the requested object does not exist, there are none.
func Request(
	conn *netlink.Conn, family byte, what string, kind uint16, flags netlink.HeaderFlags, attributes ...netlink.Attribute,
) ([]netlink.Message, error) {
	attrs, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append(Header(family, 0), attrs...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for _, m := range replies {
		if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			return nil, hostnet.ErrInterrupted
		}
	}
	return replies, nil
}

// Named returns an attribute whose value is a name, with the zero byte that the kernel expects at its end.
func Named(kind uint16, name string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(name), 0)}
}

// Each calls f with each attribute of a message. Numbers in the attributes are big endian.
func Each(m netlink.Message, f func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < headerSize {
		return errors.New("short netlink message")
	}
	dec, err := netlink.NewAttributeDecoder(m.Data[headerSize:])
	if err != nil {
		return err
	}
	dec.ByteOrder = binary.BigEndian
	for dec.Next() {
		f(dec)
	}
	return dec.Err()
}

// EachNested calls f with each attribute in a nested attribute.
func EachNested(dec *netlink.AttributeDecoder, f func(*netlink.AttributeDecoder)) {
	dec.Nested(func(nested *netlink.AttributeDecoder) error {
		for nested.Next() {
			f(nested)
		}
		return nil
	})
}

// IptablesChange returns the table and chain that a netlink event concerns, if it is about a chain, a rule or a deleted table of
// the families ip and ip6, which are those of iptables-nft. chain is "" if the whole table was deleted. For any other event, ok
// is false.
func IptablesChange(m netlink.Message) (table, chain string, ok bool) {
	if len(m.Data) < headerSize || m.Data[0] != unix.NFPROTO_IPV4 && m.Data[0] != unix.NFPROTO_IPV6 {
		return "", "", false
	}
	var chainAttr uint16
	switch uint16(m.Header.Type) & 0xff { // the upper byte is the subsystem
	case unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chainAttr = unix.NFTA_RULE_CHAIN
	default:
		return "", "", false
	}
	err := Each(m, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_TABLE_NAME: // the same number, 1, in messages about tables, chains and rules
			table = dec.String()
		case chainAttr:
			chain = dec.String()
		}
	})
	return table, chain, err == nil
}
