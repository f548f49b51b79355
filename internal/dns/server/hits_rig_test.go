package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	mdns "github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/metrics"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/testutil"
)

// world is the upstream of all zones. Its answers depend on the query's first label and type.
type world struct{}

func (world) Name() string { return "ask" }

func (world) ServeDNS(_ context.Context, w mdns.ResponseWriter, r *mdns.Msg) (int, error) {
	return mdns.RcodeSuccess, w.WriteMsg(worldAnswer(r))
}

func setupWorld(c *caddy.Controller) error {
	c.Next()
	dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return world{} })
	return nil
}

const worldTTL = 300

func worldAnswer(r *mdns.Msg) *mdns.Msg {
	q := r.Question[0]
	m := new(mdns.Msg).SetReply(r)
	m.RecursionAvailable = true
	m.AuthenticatedData = !strings.HasPrefix(q.Name, "insecure")
	rr := func(name string, qtype uint16) mdns.RR_Header {
		return mdns.RR_Header{Name: name, Rrtype: qtype, Class: mdns.ClassINET, Ttl: worldTTL}
	}
	addresses := func(name string, n int) (out []mdns.RR) {
		for i := range n {
			if q.Qtype == mdns.TypeAAAA {
				out = append(out, &mdns.AAAA{Hdr: rr(name, q.Qtype), AAAA: net.ParseIP(fmt.Sprintf("fd00::%x", i+1))})
			} else {
				out = append(out, &mdns.A{Hdr: rr(name, mdns.TypeA), A: net.IPv4(10, 0, byte(i>>8), byte(i+1))})
			}
		}
		return out
	}
	soa := &mdns.SOA{Hdr: rr("cluster.local.", mdns.TypeSOA), Ns: "ns.dns.cluster.local.", Mbox: "hostmaster.cluster.local.", Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: worldTTL}
	label, _, _ := strings.Cut(strings.ToLower(q.Name), ".")
	kind, number, _ := strings.Cut(label, "-")
	n, _ := strconv.Atoi(number)
	switch kind {
	case "gone":
		m.Rcode, m.Ns = mdns.RcodeNameError, []mdns.RR{soa}
	case "empty":
		m.Ns = []mdns.RR{soa}
	case "sick":
		m.Rcode = mdns.RcodeServerFailure
	case "refused":
		m.Rcode = mdns.RcodeRefused
	case "short":
		m.Answer = addresses(q.Name, 1)
		m.Answer[0].Header().Ttl = 0
	case "alias":
		m.Answer = append([]mdns.RR{&mdns.CNAME{Hdr: rr(q.Name, mdns.TypeCNAME), Target: "b.example.org."},
			&mdns.CNAME{Hdr: rr("b.example.org.", mdns.TypeCNAME), Target: "C.Example.NET."}}, addresses("C.Example.NET.", 3)...)
	case "leads": // to nothing
		m.Answer, m.Ns = []mdns.RR{&mdns.CNAME{Hdr: rr(q.Name, mdns.TypeCNAME), Target: "b.example.org."}}, []mdns.RR{soa}
	case "many":
		m.Answer = addresses(q.Name, max(n, 2))
	case "size": // an answer of n bytes, without OPT
		if q.Qtype == mdns.TypeTXT {
			m.Compress = true
			for left := n - m.Len(); left >= 13; { // m.Len in each turn would take longer than all else
				text := strings.Repeat("x", min(left-13, 200))
				m.Answer = append(m.Answer, &mdns.TXT{Hdr: rr(q.Name, mdns.TypeTXT), Txt: []string{text}})
				left -= 13 + len(text)
			}
		}
	default:
		switch q.Qtype {
		case mdns.TypeA, mdns.TypeAAAA, mdns.TypeANY:
			m.Answer = addresses(q.Name, 1)
		case mdns.TypeCNAME:
			m.Answer = []mdns.RR{&mdns.CNAME{Hdr: rr(q.Name, mdns.TypeCNAME), Target: "t." + q.Name}}
		case mdns.TypeTXT:
			m.Answer = []mdns.RR{&mdns.TXT{Hdr: rr(q.Name, mdns.TypeTXT), Txt: []string{"a", "", "c"}}}
		case mdns.TypeMX:
			m.Answer = []mdns.RR{&mdns.MX{Hdr: rr(q.Name, mdns.TypeMX), Preference: 10, Mx: "mx.example.org."}}
			m.Extra = []mdns.RR{&mdns.A{Hdr: rr("mx.example.org.", mdns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
		case mdns.TypeNS:
			m.Answer = []mdns.RR{&mdns.NS{Hdr: rr(q.Name, mdns.TypeNS), Ns: "ns.example.org."}}
		case mdns.TypePTR:
			m.Answer = []mdns.RR{&mdns.PTR{Hdr: rr(q.Name, mdns.TypePTR), Ptr: "host.example.org."}}
		case mdns.TypeSRV:
			m.Answer = []mdns.RR{&mdns.SRV{Hdr: rr(q.Name, mdns.TypeSRV), Port: 53, Target: "srv.example.org."}}
		case mdns.TypeSOA:
			m.Answer = []mdns.RR{soa}
			soa.Hdr.Name = q.Name
		default:
			m.Ns = []mdns.RR{soa}
		}
	}
	if o := r.IsEdns0(); o != nil {
		m.SetEdns0(o.UDPSize(), o.Do())
		if o.Do() && len(m.Answer) > 0 {
			m.Answer = append(m.Answer, &mdns.RRSIG{Hdr: rr(q.Name, mdns.TypeRRSIG), TypeCovered: q.Qtype, Algorithm: 13, Labels: 3, OrigTtl: 300,
				Expiration: 2_000_000_000, Inception: 900_000_000, KeyTag: 7, SignerName: "example.org.", Signature: "AAAA"})
		}
	}
	return m
}

// pair is one chain that gets queries in both ways: through its plugins, and by the fast path.
type pair struct {
	chain   *corefile.Chain
	at      netip.AddrPort
	hits    fastpath.Handler
	level   queryinfo.Level // of the chain's last answer
	message bool            // the cache wrote the chain's last answer as a message, not as bytes
}

const pairCorefile = `cluster.local in-addr.arpa ip6.arpa {
    cache {
        success 10000 3600 0
        denial 10000 3600 0
        rotate
        prefetch 3 1m 20%
        serve_stale 1h verify 500ms 30s 30s
    }
    ask
}
. {
    cache 3600
    errors
    ask
}
`

func newPair(t testing.TB, text string) *pair {
	t.Helper()
	store := answers.NewStore(256 << 20)
	b := corefile.NewBuilder(slog.New(slog.DiscardHandler), corefile.Plugin{Name: "metrics", Setup: metrics.Setup},
		corefile.Plugin{Name: "limit", Setup: limit.Setup(limit.New(limit.DefaultLimit))},
		corefile.Plugin{Name: "ask", Setup: setupWorld},
		corefile.Plugin{Name: "cache", Setup: cache.Setup(store, cache.NewMetrics(store, nil), nil)})
	c, err := b.Build(corefile.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 5353, Misses: 1024, FastPath: true,
		Override: text}, nil)
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, c.Close(true)) })
	p := &pair{chain: c, at: netip.MustParseAddrPort("127.0.0.1:5353")}
	p.hits = c.FastPath(p.at)
	return p
}

// fast sends a query to the fast path.
func (p *pair) fast(m []byte, tcp bool) ([]byte, bool) {
	q := &fastpath.Query{Wire: m, Client: netip.MustParseAddr("10.244.1.7"), TCP: tcp}
	if p.hits == nil {
		return nil, false
	}
	b, level, ok := p.hits.Answer([]byte("before"), q)
	if !ok {
		return nil, false
	}
	if level != queryinfo.Hit || !bytes.HasPrefix(b, []byte("before")) {
		panic("not appended, or no hit")
	}
	return b[len("before"):], true
}

// slow sends a query through the chain, as the listener does. It returns nil if the DNS library does not accept the message as a query, or
// if no plugin answers.
func (p *pair) slow(m []byte, tcp bool) []byte {
	if len(m) < 12 {
		return nil
	}
	word := func(i int) uint16 { return binary.BigEndian.Uint16(m[2*i:]) }
	head := mdns.Header{Id: word(0), Bits: word(1), Qdcount: word(2), Ancount: word(3), Nscount: word(4), Arcount: word(5)}
	r := new(mdns.Msg)
	if mdns.DefaultMsgAcceptFunc(head) != mdns.MsgAccept || r.Unpack(m) != nil {
		return nil
	}
	w := &takes{remote: &net.UDPAddr{IP: net.IPv4(10, 244, 1, 7), Port: 4000}}
	if tcp {
		w.remote = &net.TCPAddr{IP: net.IPv4(10, 244, 1, 7), Port: 4000}
	}
	q := &queryinfo.Query{Client: netip.MustParseAddr("10.244.1.7")}
	p.chain.ServeDNS(p.at, w, r, q)
	p.level, p.message = q.Level(), w.message
	return w.got
}

// takes is a ResponseWriter that keeps the last answer in wire form.
type takes struct {
	mdns.ResponseWriter
	remote  net.Addr
	got     []byte
	message bool
}

func (w *takes) LocalAddr() net.Addr  { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5353} }
func (w *takes) RemoteAddr() net.Addr { return w.remote }
func (w *takes) Write(b []byte) (int, error) {
	w.got = slices.Clone(b)
	return len(b), nil
}
func (w *takes) WriteMsg(m *mdns.Msg) (err error) {
	w.message = true
	w.got, err = m.Pack()
	return err
}

// settled returns an answer without what may differ: the TTLs, which it returns too, and the order of consecutive addresses.
func settled(t testing.TB, m []byte) ([]byte, []uint32) {
	t.Helper()
	m = slices.Clone(m)
	name := func(at int) int {
		for {
			switch c := int(m[at]); {
			case c == 0:
				return at + 1
			case c >= 0xc0:
				return at + 2
			default:
				at += c + 1
			}
		}
	}
	at, ttls := name(12)+4, []uint32(nil)
	var run []int // where the addresses of a run begin
	flush := func() {
		if len(run) == 0 {
			return
		}
		size := int(binary.BigEndian.Uint16(m[run[0]-2:]))
		var all [][]byte
		for _, r := range run {
			all = append(all, slices.Clone(m[r:r+size]))
		}
		slices.SortFunc(all, bytes.Compare)
		for i, r := range run {
			copy(m[r:], all[i])
		}
		run = nil
	}
	for at < len(m) {
		at = name(at)
		kind, size := binary.BigEndian.Uint16(m[at:]), int(binary.BigEndian.Uint16(m[at+8:]))
		if kind != mdns.TypeOPT {
			ttls = append(ttls, binary.BigEndian.Uint32(m[at+4:]))
			copy(m[at+4:at+8], make([]byte, 4))
		}
		if kind != mdns.TypeA && kind != mdns.TypeAAAA || len(run) > 0 && int(binary.BigEndian.Uint16(m[run[0]-2:])) != size {
			flush()
		}
		if at += 10; kind == mdns.TypeA || kind == mdns.TypeAAAA {
			run = append(run, at)
		}
		at += size
	}
	flush()
	return m, ttls
}
