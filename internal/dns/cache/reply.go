package cache

import (
	"encoding/binary"
	"net"

	coredns "github.com/coredns/coredns/plugin/pkg/edns"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
)

// reply answers r with a kept answer. Where nobody between us and the socket wants to see or change the message, its bytes go
// out as they are; elsewhere it is taken apart for them. Like CoreDNS's, it has no use for an error: the client is gone.
func (c *Cache) reply(w dns.ResponseWriter, r *dns.Msg, a *asked, e *answers.Entry, ttl uint32) {
	pooled, ok := c.buffers.Get().(*[]byte)
	if !ok {
		pooled = new([]byte)
	}
	defer c.buffers.Put(pooled)
	b := e.AppendReply((*pooled)[:0], &answers.Reply{ID: r.Id, Question: a.question[:a.n], RD: a.rd, CD: a.cd, AD: a.ad, TTL: ttl, Rotate: c.rotate})
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
	var own edns
	if o := r.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if coredns.SupportedOption(option.Option()) {
				return b, false
			}
		}
		own = edns{present: true, size: o.UDPSize(), flags: byte(o.Hdr.Ttl >> 8)}
		size = max(size, int(own.size))
	}
	if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
		size = dns.MaxMsgSize
	}
	if !own.fits(len(b), size) {
		return b, false
	}
	return own.append(b, 0), true
}

// edns is the OPT of an answer: the client's own, without its options.
type edns struct {
	present bool
	size    uint16
	flags   byte // the first byte of them, the other is zero
}

// optSize is an OPT's without options (RFC 6891, section 6.1.2).
const optSize = 11

// fits reports whether a message of so many bytes and the OPT are within a size.
func (o edns) fits(message, size int) bool {
	if o.present {
		message += optSize
	}
	return message <= size
}

// append appends the OPT to b, whose message begins at start.
func (o edns) append(b []byte, start int) []byte {
	if !o.present {
		return b
	}
	// RFC 6891, section 6.1.2: root, type, the client's size, extended code 0, version 0, its flags, no options.
	b = append(b, 0, 0, byte(dns.TypeOPT), byte(o.size>>8), byte(o.size), 0, 0, o.flags, 0, 0, 0)
	m := b[start:]
	binary.BigEndian.PutUint16(m[10:], binary.BigEndian.Uint16(m[10:])+1)
	return b
}
