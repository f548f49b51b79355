package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	rtnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// hooks names an XDP program and nftables' base chains of family netdev at a link.
func hooks(h *rtnetlink.Handle, index int) ([]string, error) {
	l, err := h.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("read link %d: %w", index, err)
	}
	names, err := netdevChains(l.Attrs().Name)
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		names = append(names, "XDP "+programName(ebpf.ProgramID(x.ProgId)))
	}
	return names, err
}

// netdevChains lists the base chains of family netdev at a link of the calling thread's netns. They run after the program, so they see no
// query that is a hit.
func netdevChains(link string) ([]string, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("list netdev chains: %w", err)
	}
	defer conn.Close() //nolint:errcheck // only read
	messages, err := nfnetlink.Request(conn, unix.NFPROTO_NETDEV, "list netdev chains", unix.NFT_MSG_GETCHAIN, netlink.Dump)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil, nil // a kernel without nftables
	}
	if err != nil {
		return nil, err
	}
	const hookDevices = 4 // NFTA_HOOK_DEVS of linux/netfilter/nf_tables.h: a chain may be at several devices
	var out []string
	for _, m := range messages {
		var table, chain string
		var devices []string
		err := nfnetlink.Each(m, func(a *netlink.AttributeDecoder) {
			switch a.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = a.String()
			case unix.NFTA_CHAIN_NAME:
				chain = a.String()
			case unix.NFTA_CHAIN_HOOK:
				nfnetlink.EachNested(a, func(hook *netlink.AttributeDecoder) {
					switch hook.Type() {
					case unix.NFTA_HOOK_DEV:
						devices = append(devices, hook.String())
					case hookDevices:
						nfnetlink.EachNested(hook, func(d *netlink.AttributeDecoder) { devices = append(devices, d.String()) })
					}
				})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list netdev chains: %w", err)
		}
		if slices.Contains(devices, link) {
			out = append(out, "nftables netdev "+table+" "+chain)
		}
	}
	slices.Sort(out)
	return out, nil
}
