package load

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// floodTick is how often a flood sends what is due: a timer for each of 20,000 queries per second would cost the machine
// more than they do.
const floodTick = 2 * time.Millisecond

// askFlood sends queries for names that were never queried and only counts what comes back.
func askFlood(s Stream, begun time.Time, d time.Duration) (*Book, error) {
	b := &Book{Stream: s}
	var answered atomic.Int64
	var wg sync.WaitGroup
	defer func() { wg.Wait(); b.Answered = int(answered.Load()) }()
	conns := make([]net.Conn, s.Sockets)
	for k := range conns {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Server))
		if err != nil {
			return nil, err
		}
		defer conn.Close() // ends the reader
		conns[k] = conn
		wg.Go(func() {
			for buf := make([]byte, 4096); ; {
				if n, err := conn.Read(buf); n >= 12 {
					answered.Add(1)
				} else if err != nil && !isRefused(err) {
					return
				}
			}
		})
	}
	tick := time.NewTicker(floodTick)
	defer tick.Stop()
	for total := s.Total(d); b.Sent < total; <-tick.C {
		for due := min(s.Total(time.Since(begun)), total); b.Sent < due; b.Sent++ {
			name := fmt.Sprintf("%s%08x%d.%s.", s.Label, rand.Uint32(), b.Sent, s.Zone)
			wire, err := question(uint16(b.Sent), name, dns.TypeA)
			if err != nil {
				return nil, err
			}
			_, _ = conns[b.Sent%len(conns)].Write(wire) // what does not leave is the flood's own loss
		}
	}
	return b, nil
}
