package nft

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

var _ steer.BypassReader = (*Nftables)(nil)

// Unanswered implements steer.BypassReader. If there is no pod table, or another version's without the set waiting, it returns
// none.
func (n *Nftables) Unanswered(of steer.Pod) ([]steer.PodWay, error) {
	return retried(n, "read a pod's unanswered queries", func() (out []steer.PodWay, err error) {
		for _, g := range groupsOf(of) {
			waiting, err := n.elements(g.name("waiting"))
			if err != nil {
				return nil, err
			} else if len(waiting) == 0 {
				continue
			}
			trusted, err := n.elements(g.name("trusted"))
			if err != nil {
				return nil, err
			}
			for _, e := range missing(waiting, trusted) {
				if len(e.key) <= wayProtocol {
					return nil, fmt.Errorf("set %s: a key of %d bytes", g.name("waiting"), len(e.key))
				}
				for _, r := range g.redirects {
					if familyOf(r.Is4()).nfproto == e.key[0] {
						out = append(out, steer.PodWay{ClusterDNS: r.ClusterDNS, Protocol: steer.Protocol(e.key[wayProtocol])})
					}
				}
			}
		}
		slices.SortFunc(out, func(a, b steer.PodWay) int {
			return cmp.Or(a.ClusterDNS.Compare(b.ClusterDNS), int(b.Protocol)-int(a.Protocol))
		})
		return out, nil
	})
}

// wayProtocol is the offset of the protocol in a key of IP family and protocol: each part of a concatenated key begins at a
// register of four bytes.
const wayProtocol = 4

// Generation implements steer.BypassReader.
func (n *Nftables) Generation() (uint32, error) {
	ids, err := list(n, "read the ruleset generation", unix.NFT_MSG_GETGEN, 0, func(id *uint32, dec *netlink.AttributeDecoder) {
		if dec.Type() == unix.NFTA_GEN_ID {
			*id = dec.Uint32()
		}
	})
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return ids[0], nil
}
