package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch sends a tick whenever a link or an address in cfg's netns changed; cfg's name does not matter. Ticks are
// coalesced: one that was not taken yet stands for all that followed. A lost event (the kernel's queue overran) is a
// tick too. The channel is closed after ctx ends, or when the kernel ends the subscription, which it does not in practice.
func Watch(ctx context.Context, cfg Config) (<-chan struct{}, error) {
	conn, err := dial(cfg)
	if err != nil {
		return nil, fmt.Errorf("watch links and addresses: %w", err)
	}
	return follow(ctx, conn, func() {}), nil
}

func dial(cfg Config) (*netlink.Conn, error) {
	var groups uint32
	for _, g := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		groups |= 1 << (g - 1)
	}
	return netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups, NetNS: cfg.NetNS})
}

// follow turns events into ticks until ctx ends. Closing the socket is what wakes the reader and thereby ends it.
func follow(ctx context.Context, conn *netlink.Conn, overrun func()) <-chan struct{} {
	ticks := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		defer close(ticks)
		defer func() {
			stop()
			conn.Close()
		}()
		for {
			switch _, err := conn.Receive(); {
			case errors.Is(err, unix.ENOBUFS):
				overrun()
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				return
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks
}
