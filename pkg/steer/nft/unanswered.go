package nft

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

var _ steer.Witness = (*Nftables)(nil)

// Unanswered implements steer.Witness. If the table is absent or another version's, it reports none.
func (n *Nftables) Unanswered(of steer.Pod) ([]steer.PodWay, error) {
	var out []steer.PodWay
	err := n.retry("read a pod's unanswered queries", func() error {
		out = nil
		for _, g := range groupsOf(of) {
			waiting, err := n.elements(g.name("waiting"))
			if err != nil || len(waiting) == 0 {
				if err != nil {
					return err
				}
				continue
			}
			trusted, err := n.elements(g.name("trusted"))
			if err != nil {
				return err
			}
			for _, e := range missing(waiting, trusted) {
				if len(e.key) <= wayProtocol {
					return fmt.Errorf("set %s: a key of %d bytes", g.name("waiting"), len(e.key))
				}
				for _, r := range g.redirects {
					if familyOf(r.Is4()).nfproto == e.key[0] {
						out = append(out, steer.PodWay{ClusterDNS: r.ClusterDNS, Protocol: steer.Protocol(e.key[wayProtocol])})
					}
				}
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b steer.PodWay) int {
		if c := a.ClusterDNS.Compare(b.ClusterDNS); c != 0 {
			return c
		}
		return int(b.Protocol) - int(a.Protocol)
	})
	return out, err
}

// wayProtocol is the offset of the protocol in a way's key: each part of a concatenation begins a register of four bytes.
const wayProtocol = 4

// Generation implements steer.Witness.
func (n *Nftables) Generation() (uint32, error) {
	replies, err := n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   nfgenmsg(unix.AF_UNSPEC, 0),
	})
	if err != nil {
		return 0, fmt.Errorf("read the ruleset generation: %w", err)
	}
	var out uint32
	for _, m := range replies {
		if err := hostnet.Each(m.Data, len(nfgenmsg(inet, 0)), func(dec *netlink.AttributeDecoder) {
			if b := dec.Bytes(); dec.Type() == unix.NFTA_GEN_ID && len(b) == 4 {
				out = binary.BigEndian.Uint32(b)
			}
		}); err != nil {
			return 0, fmt.Errorf("read the ruleset generation: %w", err)
		}
	}
	return out, nil
}
