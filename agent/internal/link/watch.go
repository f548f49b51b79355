package link

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch sends a tick whenever a link or an address in cfg's netns changed; cfg's name does not matter. Ticks are
// coalesced: one that was not taken yet stands for all that followed. A lost event (the kernel's queue overran) is a
// tick too. The channel is closed after ctx ends, or when the kernel ends the subscription, which it does not in practice.
func Watch(ctx context.Context, cfg Config) (<-chan struct{}, error) {
	groups := 0
	for _, g := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		groups |= 1 << (g - 1)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: uint32(groups), NetNS: cfg.NetNS}) //nolint:gosec // small constants
	if err != nil {
		return nil, fmt.Errorf("watch links and addresses: %w", err)
	}
	// Closing the socket is what wakes the reader below, which ends by it.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	ticks := make(chan struct{}, 1)
	go func() {
		defer close(ticks)
		defer func() {
			stop()
			conn.Close()
		}()
		for {
			_, err := conn.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				if errors.Is(err, unix.EINTR) || errors.Is(err, os.ErrDeadlineExceeded) {
					continue
				}
				return
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks, nil
}
