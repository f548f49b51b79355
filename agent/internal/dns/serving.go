package dns

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// servingWait bounds how long a start waits to see its sockets answer. It is a courtesy to Stop, not a proof for pods.
const servingWait = 250 * time.Millisecond

// awaitServing returns when every socket has answered over the loopback device, or after servingWait. caddy's Start returns
// before its servers read, and a server that is told to stop in that gap never stops, since it then starts after its end.
//
// The question is a bare header with an opcode that the DNS library refuses by itself, so no plugin sees it. A host that
// filters its own loopback traffic costs the wait and nothing else.
func awaitServing(ctx context.Context, cfg Config) (all bool) {
	ctx, cancel := context.WithTimeout(ctx, servingWait)
	defer cancel()
	var wg sync.WaitGroup
	answers := make(chan bool, 2*len(cfg.Addresses))
	for _, a := range cfg.Addresses {
		for _, network := range []string{"udp", "tcp"} {
			wg.Go(func() { answers <- answersStatus(ctx, network, netip.AddrPortFrom(a, cfg.Port)) })
		}
	}
	wg.Wait()
	close(answers)
	all = true
	for ok := range answers {
		all = all && ok
	}
	return all
}

func answersStatus(ctx context.Context, network string, ap netip.AddrPort) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, ap.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return false
	}
	const statusOpcode = 2 << 3
	status := []byte{'n', 'd', statusOpcode, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	answer := make([]byte, 12)
	if network == "tcp" {
		status = append([]byte{0, byte(len(status))}, status...)
		answer = make([]byte, 14)
	}
	if _, err := conn.Write(status); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, answer)
	return err == nil
}
