package cache

import (
	"net"

	"github.com/coredns/coredns/plugin/pkg/edns"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
)

// reply answers r with an entry. It writes bytes if no plugin before the cache needs replies as messages, and CoreDNS would at most add an
// OPT record (see finalOPT); otherwise it unpacks them first. Like CoreDNS's cache, reply ignores write errors, because the client is gone.
func (c *Cache) reply(w dns.ResponseWriter, r *dns.Msg, a *query, e *answers.Entry, ttl uint32) {
	pooled, ok := c.buffers.Get().(*[]byte)
	if !ok {
		pooled = new([]byte)
	}
	defer c.buffers.Put(pooled)
	b := e.AppendReply((*pooled)[:0], &answers.Reply{ID: r.Id, Question: a.question[:a.n],
		RD: a.rd, CD: a.cd, AD: a.ad, TTL: ttl, Rotate: c.rotate})
	*pooled = b
	if opt, ok := finalOPT(len(b), w, r); ok && c.raw {
		b = opt.Append(b, 0)
		*pooled = b
		_, _ = w.Write(b)
		return
	}
	// CoreDNS adds the OPT record, and truncates a message that is too long.
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		m.SetRcode(r, dns.RcodeServerFailure) // not expected: the same library packed the message
	}
	_ = w.WriteMsg(m)
}

// finalOPT returns the OPT record that request.ScrubWriter would add to an answer of size bytes. ok is false if ScrubWriter would also
// change the message, because it is too long, or because a plugin of this process supports an EDNS option of the query.
func finalOPT(size int, w dns.ResponseWriter, r *dns.Msg) (opt msg.OPT, ok bool) {
	if o := r.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if edns.SupportedOption(option.Option()) {
				return opt, false
			}
		}
		opt = msg.OPT{Present: true, Size: o.UDPSize(), Flags: byte(o.Hdr.Ttl >> 8)}
	}
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	return opt, size+opt.Len() <= opt.MaxAnswer(tcp)
}
