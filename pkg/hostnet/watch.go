package hostnet

import (
	"context"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Follow ticks for messages that matter, and where some were lost, until ctx ends, which closes the channel and conn. Ticks are
// coalesced.
func Follow(ctx context.Context, conn *netlink.Conn, matters func([]netlink.Message) bool) <-chan struct{} {
	ticks := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends Receive
	go func() {
		defer close(ticks)
		defer func() {
			if stop() {
				_ = conn.Close()
			}
		}()
		for {
			msgs, err := conn.Receive()
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			if err == nil && !matters(msgs) {
				continue
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks
}
