package link

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Watch returns a channel that gets a tick whenever any link or address in cfg.NetNS changes, whatever cfg.Name is. While a tick
// waits to be received, further changes add none. If the kernel's queue overflows, that also makes a tick. The channel is closed after ctx
// ends, or if the kernel ends the subscription, which does not happen in practice.
func Watch(ctx context.Context, cfg Config) (<-chan struct{}, error) {
	ticks, err := hostnet.Watch(ctx, cfg.NetNS, unix.NETLINK_ROUTE, nil, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("watch links and addresses: %w", err)
	}
	return ticks, nil
}
