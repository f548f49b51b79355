// Package responsewriter is the common part of all dns.ResponseWriters of this module.
//
// It guarantees that a writer has both addresses; neither signatures nor hijacked connections exist.
//
// It has no failures of its own: a message that cannot be packed or unpacked is an error to the plugin that wrote it.
package responsewriter

import (
	"io"
	"net"

	"github.com/miekg/dns"
)

// Base implements dns.ResponseWriter except for WriteMsg and Write.
type Base struct{ Local, Remote net.Addr }

// LocalAddr returns the address that the query came to.
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

// Pack writes a message's wire form by w.
func Pack(w io.Writer, m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// Capture is the client of a query that this process sends to itself: it keeps the answer. The zero value without addresses may only be
// passed to code that wants none.
type Capture struct {
	Base
	Msg *dns.Msg // the last answer; nil: none. A plugin may still hold it, so it must not be changed.
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
