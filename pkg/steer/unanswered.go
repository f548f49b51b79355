package steer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// PodWay is one of the ways by which a pod asks: a cluster DNS address and a protocol.
type PodWay struct {
	ClusterDNS netip.Addr
	Protocol   Protocol
}

// Witness is what a back end has whose pod tables give back by themselves. Others find lost questions only by asking from the
// pod's netns.
type Witness interface {
	// Unanswered lists the ways that the pod table gives back now, since questions were not answered there.
	Unanswered() ([]PodWay, error)
	// Generation is the number that the kernel raises at each change of the netns's rules. Packets change nothing of it.
	Generation() (uint32, error)
}

var _ Witness = (*Nftables)(nil)

// Unanswered implements Witness. Where there is no table, or an older one without evidence, nothing is unanswered.
func (n *Nftables) Unanswered() ([]PodWay, error) {
	var out []PodWay
	err := n.retry("read what a pod waits for", func() error {
		out = nil
		for _, f := range families() {
			waiting, err := n.elements("waiting" + f.suffix)
			if err != nil || len(waiting) == 0 {
				if err != nil {
					return err
				}
				continue
			}
			trusted, err := n.elements("trusted" + f.suffix)
			if err != nil {
				return err
			}
			for _, e := range missing(waiting, trusted) {
				if len(e.key) < int(f.size)+1 {
					return fmt.Errorf("set waiting%s: a key of %d bytes", f.suffix, len(e.key))
				}
				addr, _ := netip.AddrFromSlice(e.key[:f.size])
				out = append(out, PodWay{addr, Protocol(e.key[f.size])})
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
		if err := each(m.Data, len(nfgenmsg(inet, 0)), func(dec *netlink.AttributeDecoder) {
			if b := dec.Bytes(); dec.Type() == unix.NFTA_GEN_ID && len(b) == 4 {
				out = binary.BigEndian.Uint32(b)
			}
		}); err != nil {
			return 0, fmt.Errorf("read the rules' generation: %w", err)
		}
	}
	return out, nil
}
