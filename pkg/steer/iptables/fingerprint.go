package iptables

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// fingerprint is a digest of the kernel's rules in our chains and in the base chains that jump to them, without counters. As
// long as it is the same as after a check that found everything correct, no further check is needed. It starts no program:
// starting one copies this process's descriptors, sockets among them, and if the agent is killed at that moment, queries to
// those sockets are lost until the copy is gone.
func (b *Iptables) fingerprint(scripts []script) (string, error) {
	sum := sha256.New()
	for _, s := range scripts {
		for _, table := range s.tables() {
			var chains []string
			for _, c := range s.in(table) {
				chains = append(chains, c.name)
				for _, j := range c.from {
					chains = append(chains, j.base)
				}
			}
			slices.Sort(chains)
			chains = slices.Compact(chains)
			fmt.Fprintf(sum, "%s %s\n", s.family(), table)
			var err error
			if b.variant == Legacy {
				err = hostnet.InNetNS(b.nsFD, func() error { return digestLegacy(sum, s.is4, table, chains) })
			} else {
				err = b.digestNFT(sum, s.is4, table, chains)
			}
			if err != nil {
				return "", err
			}
		}
	}
	return string(sum.Sum(nil)), nil
}

// digestNFT writes the rules of chains, as nf_tables dumps them.
func (b *Iptables) digestNFT(sum hash.Hash, is4 bool, table string, chains []string) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: hostnet.ToEnter(b.nsFD)})
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	defer conn.Close() //nolint:errcheck // only read
	family := byte(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	for _, chain := range chains {
		attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)}, {Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)},
		})
		if err != nil {
			return err
		}
		const header = 4 // nfgenmsg
		replies, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("list rules of %s: %w", chain, err)
		}
		fmt.Fprintf(sum, "%s %d\n", chain, len(replies))
		for _, m := range replies {
			if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				return fmt.Errorf("list rules of %s: %w", chain, errInterrupted)
			}
			if len(m.Data) < header {
				continue
			}
			if err := digestRule(sum, m.Data[header:]); err != nil {
				return fmt.Errorf("list rules of %s: %w", chain, err)
			}
		}
	}
	return nil
}

var errInterrupted = errors.New("the rules changed meanwhile")

// digestRule writes a rule's expressions, without its handle and counts.
func digestRule(sum io.Writer, data []byte) error {
	attrs, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		if a.Type&^nested != unix.NFTA_RULE_EXPRESSIONS {
			continue
		}
		elements, err := netlink.UnmarshalAttributes(a.Data)
		if err != nil {
			return err
		}
		for _, e := range elements {
			parts, err := netlink.UnmarshalAttributes(e.Data)
			if err != nil {
				return err
			}
			counter := false
			for _, p := range parts {
				kind := p.Type &^ nested
				if kind == unix.NFTA_EXPR_NAME {
					counter = string(p.Data) == "counter\x00"
				} else if counter {
					continue
				}
				_ = binary.Write(sum, binary.NativeEndian, [2]uint16{kind, uint16(len(p.Data))}) //nolint:gosec // an attribute's own length
				_, _ = sum.Write(p.Data)
			}
		}
	}
	return nil
}

const nested = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
