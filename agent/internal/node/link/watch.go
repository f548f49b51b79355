package link

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Watch sends a tick whenever a link or an address in cfg's netns changed; cfg.Name is not used. Ticks are
// coalesced: one that was not received yet covers all that followed. A lost event (the kernel's queue overran) is a
// tick too. The channel is closed after ctx ends, or when the kernel ends the subscription, which it does not in practice.
func Watch(ctx context.Context, cfg Config) (<-chan struct{}, error) {
	ticks, err := hostnet.Watch(ctx, cfg.NetNS, unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("watch links and addresses: %w", err)
	}
	return ticks, nil
}
