package steer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// PodWay is one of the ways by which a pod asks: a cluster DNS address and a protocol.
type PodWay struct {
	ClusterDNS netip.Addr
	Protocol   Protocol
}

// Witness is what a back end has whose pod tables give back by themselves. Others find lost questions only by asking from the
// pod's netns.
type Witness interface {
	// Unanswered lists the ways of a pod table that the table gives back now, since questions were not answered there.
	Unanswered(of Pod) ([]PodWay, error)
	// Generation is the number that the kernel raises at each change of the netns's rules. Packets change nothing of it.
	Generation() (uint32, error)
}

var _ Witness = (*Nftables)(nil)

// Unanswered implements Witness. Where there is no table, or another one, nothing is unanswered.
func (n *Nftables) Unanswered(of Pod) ([]PodWay, error) {
	var out []PodWay
	err := n.retry("read what a pod waits for", func() error {
		out = nil
		for _, g := range of.groups() {
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
						out = append(out, PodWay{r.ClusterDNS, Protocol(e.key[wayProtocol])})
					}
				}
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b PodWay) int {
		if c := a.ClusterDNS.Compare(b.ClusterDNS); c != 0 {
			return c
		}
		return int(b.Protocol) - int(a.Protocol)
	})
	return out, err
}

// wayProtocol is where the protocol stands in a way's key: each part of a concatenation begins a register of four bytes.
const wayProtocol = 4

// Generation implements Witness.
func (n *Nftables) Generation() (uint32, error) {
	replies, err := n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   nfgenmsg(unix.AF_UNSPEC, 0),
	})
	if err != nil {
		return 0, fmt.Errorf("read the rules' generation: %w", err)
	}
	var out uint32
	for _, m := range replies {
		if err := hostnet.Each(m.Data, len(nfgenmsg(inet, 0)), func(dec *netlink.AttributeDecoder) {
			if b := dec.Bytes(); dec.Type() == unix.NFTA_GEN_ID && len(b) == 4 {
				out = binary.BigEndian.Uint32(b)
			}
		}); err != nil {
			return 0, fmt.Errorf("read the rules' generation: %w", err)
		}
	}
	return out, nil
}
