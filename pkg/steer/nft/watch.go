package nft

import (
	"context"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// Watch ticks whenever a transaction changed the neardns table in this netns, or in iptables-nft's filter table the policy or a
// deleted rule of the base chains or of neardns's chains (iptables.EnsureAccepts), until ctx ends, which closes the channel.
// Ticks are coalesced: one that is not read yet covers all later changes. It also ticks if events were lost (other programs'
// large loads overflow the socket), since anything may have changed. Packets that change sets are no transactions.
func (n *Nftables) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, n.nsFD, unix.NETLINK_NETFILTER, changesTable, unix.NFNLGRP_NFTABLES)
}

// changesTable reports whether a message concerns the neardns table, or is a change of iptables-nft's filter table that can affect
// the agent's addresses. Most changes there are not: kube-proxy writes at each sync, but only into its own chains.
func changesTable(msgs []netlink.Message) bool {
	return slices.ContainsFunc(msgs, func(m netlink.Message) bool {
		if table, chain, ok := nfnetlink.IptablesChange(m); ok {
			return table == "filter" && uint16(m.Header.Type)&0xff != unix.NFT_MSG_NEWRULE &&
				(chain == "" || chain == "INPUT" || chain == "OUTPUT" || strings.HasPrefix(chain, "NEARDNS-"))
		}
		// The first attribute is the table's name in messages about tables, chains, rules, sets, elements and objects alike.
		ours, first := false, true
		err := hostnet.Each(m.Data, nfnetlink.HeaderSize, func(dec *netlink.AttributeDecoder) {
			ours = ours || first && dec.Type() == unix.NFTA_TABLE_NAME && dec.String() == steer.TableName
			first = false
		})
		return err == nil && ours && m.Data[0] == inet
	})
}
