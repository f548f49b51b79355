package load

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// askUDP sends the stream's queries over sockets in turn.
func askUDP(s Stream, begun time.Time, d time.Duration) (*Book, error) {
	l := newLedger(s, begun, s.Total(d))
	sockets := make([]*socket, s.Sockets)
	var wg sync.WaitGroup
	defer wg.Wait()
	for k := range sockets {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.Server))
		if err != nil {
			return nil, err
		}
		defer conn.Close() // ends read
		sockets[k] = &socket{conn: conn, self: localAddr(conn), asked: map[uint16]int{}, ledger: l}
		wg.Go(sockets[k].read)
	}
	late := s.pace(begun, d, func(i int) { sockets[i%len(sockets)].ask(i) })
	l.wait()
	return l.book(late), nil
}

func localAddr(c net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return at.Addr().Unmap()
}

// socket is one UDP client.
type socket struct {
	*ledger
	conn net.Conn
	self netip.Addr

	mu    sync.Mutex     // guards the field below
	asked map[uint16]int // query by id, for as long as the run
}

func (c *socket) ask(i int) {
	id := uint16(i / c.stream.Sockets) // comes again after 65,536 queries of this socket
	wire, err := question(id, c.stream.QName(i), dns.TypeA)
	if err != nil {
		c.fault(err.Error())
		return
	}
	c.mu.Lock()
	c.asked[id] = i
	c.mu.Unlock()
	c.send(i)
	_, err = c.conn.Write(wire)
	if isRefused(err) {
		// An ICMP error of an earlier query, reported now; this one was not sent yet.
		_, err = c.conn.Write(wire)
	}
	if err != nil {
		c.fault("send: " + rootCause(err))
	}
}

// read takes answers in until the socket is closed.
func (c *socket) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.conn.Read(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			c.fault("receive: " + rootCause(err))
			continue
		case n < 12:
			c.fault("answer without a header")
			continue
		}
		c.mu.Lock()
		i, known := c.asked[binary.BigEndian.Uint16(buf)]
		c.mu.Unlock()
		if !known {
			c.fault("answer to nothing")
			continue
		}
		o, reason := judge(buf[:n], c.stream.QName(i), dns.TypeA, c.self)
		c.answer(i, o, reason)
	}
}

// rootCause is an error without addresses and ports, to be counted.
func rootCause(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	var t net.Error
	if errors.As(err, &t) && t.Timeout() {
		return "timeout"
	}
	return err.Error()
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
