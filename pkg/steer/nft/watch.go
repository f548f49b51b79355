package nft

import (
	"context"
	"encoding/binary"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Watch ticks whenever a transaction changed the neardns table in this netns, or in iptables-nft's filter table the policy or a
// deleted rule of the base chains or of neardns's chains (iptables.EnsureAccepts), until ctx ends, which closes the channel.
// Ticks are coalesced: one that is not read yet covers all later changes. It also ticks if events were lost (other programs'
// large loads overflow the socket), since anything may have changed. Packets that change sets are no transactions.
func (n *Nftables) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, n.nsFD, unix.NETLINK_NETFILTER, changesTable, unix.NFNLGRP_NFTABLES)
}

// changesTable reports whether a message concerns the neardns table or the filter table. The first attribute is the table's
// name in messages about tables, chains, rules, sets, elements and objects alike.
func changesTable(msgs []netlink.Message) bool {
	const header = 4 // nfgenmsg
	for _, m := range msgs {
		if len(m.Data) < header+unix.SizeofNlAttr {
			continue
		}
		if m.Data[0] != inet {
			if changesFilter(m, header) {
				return true
			}
			continue
		}
		length := int(binary.NativeEndian.Uint16(m.Data[header:]))
		kind := binary.NativeEndian.Uint16(m.Data[header+2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if kind == unix.NFTA_TABLE_NAME && length > unix.SizeofNlAttr && header+length <= len(m.Data) &&
			strings.TrimRight(string(m.Data[header+unix.SizeofNlAttr:header+length]), "\x00") == steer.TableName {
			return true
		}
	}
	return false
}

// changesFilter reports whether a message is a change of iptables-nft's filter table that can affect the agent's addresses.
// Most are not: kube-proxy writes there at each sync, but only into its own chains.
func changesFilter(m netlink.Message, header int) bool {
	if m.Data[0] != unix.NFPROTO_IPV4 && m.Data[0] != unix.NFPROTO_IPV6 {
		return false
	}
	var chainAttr uint16
	switch uint16(m.Header.Type) & 0xff { // the rest is the subsystem
	case unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_DELRULE:
		chainAttr = unix.NFTA_RULE_CHAIN
	default:
		return false
	}
	table, chain := "", ""
	err := hostnet.Each(m.Data, header, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_TABLE_NAME: // 1 in all of them
			table = dec.String()
		case chainAttr:
			chain = dec.String()
		}
	})
	if err != nil || table != "filter" {
		return false
	}
	return chainAttr == 0 || chain == "INPUT" || chain == "OUTPUT" || strings.HasPrefix(chain, "NEARDNS-")
}
