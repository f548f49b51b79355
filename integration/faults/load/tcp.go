package load

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// askOneShot opens a connection for each query.
func askOneShot(s Stream, begun time.Time, d time.Duration) (*Book, error) {
	l := newLedger(s, begun, s.Total(d))
	var wg sync.WaitGroup
	late := s.pace(begun, d, func(i int) {
		l.send(i)
		wg.Go(func() {
			if err := l.oneShot(i); err != nil {
				l.fault(rootCause(err))
			}
		})
	})
	wg.Wait()
	return l.book(late), nil
}

func (l *ledger) oneShot(i int) error {
	deadline := l.deadline(i)
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.DialContext(context.Background(), "tcp", l.stream.Server.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := writeTCP(conn, uint16(i), l.stream.QName(i)); err != nil {
		return err
	}
	wire, err := readTCP(conn)
	if err != nil {
		return err
	}
	if binary.BigEndian.Uint16(wire) != uint16(i) {
		return errors.New("answer with another id")
	}
	o, reason := judge(wire, l.stream.QName(i), dns.TypeA, localAddr(conn))
	l.answer(i, o, reason)
	return nil
}

func writeTCP(conn net.Conn, id uint16, name string) error {
	wire, err := question(id, name, dns.TypeA)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...))
	return err
}

func readTCP(conn io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	wire := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, wire); err != nil {
		return nil, err
	}
	if len(wire) < 12 {
		return nil, errors.New("answer without a header")
	}
	return wire, nil
}

// askLong pipelines queries on connections that stay open. What a stub resolver does is done: a connection that the other
// side closed is reopened for the next query, and one on which a query timed out is given up with all that is in
// flight on it.
func askLong(s Stream, begun time.Time, d time.Duration) (*Book, error) {
	l := newLedger(s, begun, s.Total(d))
	clients := make([]*client, s.Sockets)
	var wg sync.WaitGroup
	for k := range clients {
		clients[k] = &client{ledger: l, queue: make(chan int, s.Total(d)/s.Sockets+1)}
		wg.Go(clients[k].run)
	}
	late := s.pace(begun, d, func(i int) {
		l.send(i)
		clients[i%len(clients)].queue <- i
	})
	l.wait()
	for _, c := range clients {
		close(c.queue)
	}
	wg.Wait()
	return l.book(late), nil
}

// client is one long-lived connection after another.
type client struct {
	*ledger
	queue chan int // queries to send, in order; closed at the end

	mu    sync.Mutex // guards the field below
	conn  *pipeline  // nil: none
	wg    sync.WaitGroup
	asked int
}

// pipeline is one connection with what is in flight on it, guarded by its client's mutex.
type pipeline struct {
	net.Conn
	flying map[uint16]int
}

// run sends what is queued; a query whose patience ends while the connection is being made is lost.
func (c *client) run() {
	for i := range c.queue {
		if time.Now().After(c.deadline(i)) {
			continue
		}
		err := c.ask(i)
		if errors.Is(err, net.ErrClosed) {
			err = c.ask(i) // given up a moment before: nothing was sent on it
		}
		if err != nil {
			c.fault(rootCause(err))
		}
	}
	c.drop(c.current())
	c.wg.Wait()
}

func (c *client) current() *pipeline {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

func (c *client) ask(i int) error {
	p := c.current()
	if p == nil {
		dialer := net.Dialer{Deadline: c.deadline(i)}
		conn, err := dialer.DialContext(context.Background(), "tcp", c.stream.Server.String())
		if err != nil {
			return err
		}
		p = &pipeline{Conn: conn, flying: map[uint16]int{}}
		c.mu.Lock()
		c.conn = p
		c.mu.Unlock()
		c.wg.Go(func() { c.read(p) })
	}
	id := uint16(c.asked)
	c.asked++
	c.mu.Lock()
	p.flying[id] = i
	c.patience(p)
	c.mu.Unlock()
	_ = p.SetWriteDeadline(c.deadline(i)) // an error is met by the write
	return writeTCP(p, id, c.stream.QName(i))
}

// patience sets until when the connection's next answer is waited for. The caller holds the mutex.
func (c *client) patience(p *pipeline) {
	var first time.Time
	for _, i := range p.flying {
		if d := c.deadline(i); first.IsZero() || d.Before(first) {
			first = d
		}
	}
	_ = p.SetReadDeadline(first) // the zero time is none; an error is met by the next read
}

// drop gives a connection up.
func (c *client) drop(p *pipeline) {
	if p == nil {
		return
	}
	_ = p.Close() // ends read
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == p {
		c.conn = nil
	}
}

// read takes answers in until the connection ends.
func (c *client) read(p *pipeline) {
	defer c.drop(p)
	self := localAddr(p)
	for {
		wire, err := readTCP(p)
		if err != nil {
			c.mu.Lock()
			lost := len(p.flying)
			c.mu.Unlock()
			if lost > 0 && !errors.Is(err, net.ErrClosed) {
				c.fault(rootCause(err))
			}
			return
		}
		id := binary.BigEndian.Uint16(wire)
		c.mu.Lock()
		i, known := p.flying[id]
		delete(p.flying, id)
		c.patience(p)
		c.mu.Unlock()
		if !known {
			c.fault("answer to nothing")
			continue
		}
		o, reason := judge(wire, c.stream.QName(i), dns.TypeA, self)
		c.answer(i, o, reason)
	}
}
