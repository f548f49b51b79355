package prober

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// resendAfter is how long to wait for an acknowledgement before sending again. Packets are not lost over a veth, but may be on the path to
// a kube-dns on another node.
const resendAfter = time.Second

// maxSegment is the announced maximum segment size: the smallest that every path carries (RFC 9293 section 3.7.1, IPv6's 1280 less its
// headers).
const maxSegment = 1220

// stream queries over a new TCP connection. It implements as much of RFC 9293 as one query needs: a handshake, one segment out, segments in
// order in, and a reset instead of an orderly end, as the prober's sockets do.
func (f *frames) stream(ctx context.Context, source, target netip.Addr, wire []byte) ([]byte, error) {
	flow, err := f.open(steer.TCP, source, target, 0)
	if err != nil {
		return nil, err
	}
	defer flow.close()
	c := &segments{flow: flow, next: rand.Uint32()} //nolint:gosec // no other host is on this link
	defer c.reset()
	if err := c.connect(ctx); err != nil {
		return nil, err
	}
	return c.ask(ctx, append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)) //nolint:gosec // a query is short
}

// segments is the state of one connection.
type segments struct {
	*flow
	next     uint32 // the next sequence number to send
	expected uint32 // the next sequence number to receive
	open     bool   // the other end knows of it
}

func (c *segments) connect(ctx context.Context) error {
	syn := packet{flags: flagSYN, sequence: c.next, segmentSize: maxSegment}
	c.next++
	answer, err := c.exchange(ctx, syn, func(p packet) bool {
		return p.flags&flagRST != 0 && p.acks == c.next || p.flags&(flagSYN|flagACK) == flagSYN|flagACK && p.acks == c.next
	})
	if err != nil {
		return err
	}
	if answer.flags&flagRST != 0 {
		return unix.ECONNREFUSED
	}
	c.open, c.expected = true, answer.sequence+1
	return nil
}

// ask sends a message and reads the answer, each with its length before it.
func (c *segments) ask(ctx context.Context, message []byte) ([]byte, error) {
	out := packet{flags: flagPSH | flagACK, sequence: c.next, acks: c.expected, payload: message}
	c.next += uint32(len(message)) //nolint:gosec // a query is short
	var got []byte
	for {
		p, err := c.exchange(ctx, out, func(p packet) bool { return p.flags&flagRST != 0 || len(p.payload) > 0 || p.flags&flagFIN != 0 })
		if err != nil {
			return nil, err
		}
		if p.flags&flagRST != 0 {
			if p.sequence != c.expected {
				continue
			}
			c.open = false
			return nil, unix.ECONNRESET
		}
		if p.sequence != c.expected { // a duplicate, or out of order: acknowledge again what has arrived
			out = packet{flags: flagACK, sequence: c.next, acks: c.expected}
			continue
		}
		got = append(got, p.payload...)
		c.expected += uint32(len(p.payload)) //nolint:gosec // what a frame holds
		if len(got) >= 2 {
			if length := int(binary.BigEndian.Uint16(got)); len(got) >= 2+length {
				return got[2 : 2+length], nil
			}
		}
		if p.flags&flagFIN != 0 {
			return nil, errors.New("the server closed the connection without an answer")
		}
		out = packet{flags: flagACK, sequence: c.next, acks: c.expected}
	}
}

// exchange sends a packet, and again each second, until a wanted one arrives.
func (c *segments) exchange(ctx context.Context, out packet, wanted func(packet) bool) (packet, error) {
	for {
		if err := c.send(out); err != nil {
			return packet{}, err
		}
		p, err := c.await(ctx, wanted)
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return p, err
		}
	}
}

func (c *segments) await(ctx context.Context, wanted func(packet) bool) (packet, error) {
	attempt, cancel := context.WithTimeout(ctx, resendAfter)
	defer cancel()
	for {
		p, err := c.receive(attempt)
		if err != nil || wanted(p) {
			return p, err
		}
	}
}

// reset ends the connection at the other end, which then keeps no state of it.
func (c *segments) reset() {
	if c.open {
		_ = c.send(packet{flags: flagRST | flagACK, sequence: c.next, acks: c.expected}) // it ends by itself, only later
	}
}
