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

// Watch returns a channel that ticks when a transaction has changed the neardns table in this netns. It also ticks at changes of
// iptables-nft's filter table that may affect the rules of iptables.EnsureAccepts. These are: the table was deleted, the chain
// INPUT or OUTPUT or a neardns chain was created, changed or deleted, or a rule of these chains was deleted. It also ticks if
// events were lost, because another program's large transaction overflowed the socket. Packets that change sets cause no ticks.
// While a tick is pending, further ones are dropped. The channel is closed when ctx ends or the socket fails.
func (n *Nftables) Watch(ctx context.Context) (<-chan struct{}, error) {
	return hostnet.Watch(ctx, n.nsFD, unix.NETLINK_NETFILTER, changesTable, unix.NFNLGRP_NFTABLES)
}

// changesTable reports whether a netlink message is about the neardns table, or about a change of iptables-nft's filter table
// that can affect the agent's addresses. Most changes there are kube-proxy's, which writes only into its own chains.
func changesTable(msgs []netlink.Message) bool {
	return slices.ContainsFunc(msgs, func(m netlink.Message) bool {
		if table, chain, ok := nfnetlink.IptablesChange(m); ok {
			return table == "filter" && uint16(m.Header.Type)&0xff != unix.NFT_MSG_NEWRULE &&
				(chain == "" || chain == "INPUT" || chain == "OUTPUT" || strings.HasPrefix(chain, "NEARDNS-"))
		}
		// In messages about tables, chains, rules, sets, elements and objects, the first attribute is the table's name.
		ours, first := false, true
		err := nfnetlink.Each(m, func(dec *netlink.AttributeDecoder) {
			ours = ours || first && dec.Type() == unix.NFTA_TABLE_NAME && dec.String() == steer.TableName
			first = false
		})
		return err == nil && ours && m.Data[0] == inet
	})
}
