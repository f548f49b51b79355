// Package responsewriter has the common parts of this module's dns.ResponseWriters.
//
// A writer always has both addresses. Signatures and hijacked connections are not supported.
//
// If a message cannot be packed or unpacked, the plugin that wrote it gets the error.
package responsewriter

import (
	"io"
	"net"

	"github.com/miekg/dns"
)

// Base implements dns.ResponseWriter except for WriteMsg and Write.
type Base struct{ Local, Remote net.Addr }

// LocalAddr returns the server's address to which the query came.
func (b Base) LocalAddr() net.Addr { return b.Local }

// RemoteAddr returns the client's address.
func (b Base) RemoteAddr() net.Addr { return b.Remote }

// Close does nothing: the socket outlives the query.
func (Base) Close() error { return nil }

// TsigStatus returns nil: no signature is checked.
func (Base) TsigStatus() error { return nil }

// TsigTimersOnly does nothing.
func (Base) TsigTimersOnly(bool) {}

// Hijack does nothing.
func (Base) Hijack() {}

// Pack writes a message to w in wire form.
func Pack(w io.Writer, m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// Capture is the ResponseWriter of a query that this process sends to itself. It keeps the answer in Msg.
type Capture struct {
	Base
	Msg *dns.Msg // the last answer, or nil; it must not be changed, because a plugin may still use it
}

// WriteMsg keeps an answer.
func (c *Capture) WriteMsg(m *dns.Msg) error {
	c.Msg = m
	return nil
}

// Write keeps an answer in wire form.
func (c *Capture) Write(b []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return 0, err
	}
	c.Msg = m
	return len(b), nil
}
