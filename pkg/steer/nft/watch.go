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

// Watch ticks whenever a transaction touched our table in this netns, or the policy of iptables-nft's filter table or a
// rule taken out of its base chains or of ours there (iptables.EnsureAccepts), until ctx ends, which closes the channel. Ticks
// are coalesced: one that is not read yet stands for all that came since. Where events were lost (other programs' large
// loads overflow the socket) it ticks too, since anything may have happened. Packets that fill sets are no transactions.
func (n *Nftables) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, n.nsFD, unix.NETLINK_NETFILTER, touchesUs, unix.NFNLGRP_NFTABLES)
}

// touchesUs looks at the first attribute, which is the table's name in messages about tables, chains, rules, sets,
// elements and objects alike.
func touchesUs(msgs []netlink.Message) bool {
	const header = 4 // nfgenmsg
	for _, m := range msgs {
		if len(m.Data) < header+unix.SizeofNlAttr {
			continue
		}
		if m.Data[0] != inet {
			if touchesFilter(m, header) {
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

// touchesFilter tells changes of iptables-nft's filter table that can matter to our addresses from the rest, of which a
// node has many: kube-proxy writes there at each sync, but only into chains of its own.
func touchesFilter(m netlink.Message, header int) bool {
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
