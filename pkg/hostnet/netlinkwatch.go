package hostnet

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/tick"
)

// Watch returns a channel that ticks when messages arrive for the multicast groups of a netlink protocol and matters returns true for them.
// If matters is nil, all messages count. The channel also ticks if the kernel dropped messages. It is closed when ctx ends or the socket
// fails. matters is called by one goroutine. nsFD is the netns in which to listen (0: the calling thread's), and may be closed after Watch
// returns.
func Watch(ctx context.Context, nsFD, protocol int, matters func([]netlink.Message) bool, groups ...uint32) (<-chan struct{}, error) {
	conn, err := listen(nsFD, protocol, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen to netlink events: %w", err)
	}
	return follow(ctx, conn, matters), nil
}

func listen(nsFD, protocol int, groups ...uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(protocol, &netlink.Config{NetNS: ToEnter(nsFD)})
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadBuffer(ReadBuffer) // best effort: an overflow causes a tick
	for _, g := range groups {
		if err := conn.JoinGroup(g); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// follow receives the messages and sends the ticks. When ctx ends it closes conn, because this ends a waiting Receive.
func follow(ctx context.Context, conn *netlink.Conn, matters func([]netlink.Message) bool) <-chan struct{} {
	ticks := tick.New()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	go func() {
		defer close(ticks)
		defer func() {
			if stop() {
				_ = conn.Close()
			}
		}()
		for {
			msgs, err := conn.Receive()
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS):
				return
			}
			if err != nil || matters == nil || matters(msgs) {
				ticks.Send()
			}
		}
	}()
	return ticks
}
