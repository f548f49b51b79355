package cache

import (
	"encoding/binary"
	"net"

	"github.com/coredns/coredns/plugin/pkg/edns"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/wire"
)

// reply answers r with a kept answer. Where nobody between us and the socket wants to see or change the message, its bytes go
// out as they are; elsewhere it is taken apart for them. Like CoreDNS's, it has no use for an error: the client is gone.
func (c *Cache) reply(w dns.ResponseWriter, r *dns.Msg, a *asked, e *wire.Entry, ttl uint32) {
	pooled, ok := c.buffers.Get().(*[]byte)
	if !ok {
		pooled = new([]byte)
	}
	defer c.buffers.Put(pooled)
	b := e.AppendReply((*pooled)[:0], &wire.Reply{ID: r.Id, Question: a.question[:a.n], RD: a.rd, CD: a.cd, AD: a.ad, TTL: ttl, Rotate: c.rotate})
	bare := len(b)
	*pooled = b
	if b, ok = finish(b, w, r); ok {
		*pooled = b
		if c.raw {
			_, _ = w.Write(b)
			return
		}
	}
	m := new(dns.Msg)
	// The OPT is CoreDNS's to add, and a message that is too long its to cut.
	if b = b[:bare]; ok && r.IsEdns0() != nil {
		binary.BigEndian.PutUint16(b[10:], binary.BigEndian.Uint16(b[10:])-1)
	}
	if err := m.Unpack(b); err != nil {
		m.SetRcode(r, dns.RcodeServerFailure) // it was packed by the same library
	}
	_ = w.WriteMsg(m)
}

// finish adds the OPT that request.ScrubWriter would, and reports whether the message is one that it would not change
// further: it fits, and no plugin of this process answers EDNS options.
func finish(b []byte, w dns.ResponseWriter, r *dns.Msg) ([]byte, bool) {
	size := dns.MinMsgSize
	o := r.IsEdns0()
	if o != nil {
		for _, option := range o.Option {
			if edns.SupportedOption(option.Option()) {
				return b, false
			}
		}
		size = max(size, int(o.UDPSize()))
	}
	if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
		size = dns.MaxMsgSize
	}
	need := len(b)
	if o != nil {
		need += 11
	}
	if need > size {
		return b, false
	}
	if o == nil {
		return b, true
	}
	// RFC 6891, section 6.1.2: root, type, the client's size, extended code 0, version 0, its flags, no options.
	b = append(b, 0, 0, byte(dns.TypeOPT), byte(o.UDPSize()>>8), byte(o.UDPSize()), 0, 0, byte(o.Hdr.Ttl>>8), 0, 0, 0)
	binary.BigEndian.PutUint16(b[10:], binary.BigEndian.Uint16(b[10:])+1)
	return b, true
}
