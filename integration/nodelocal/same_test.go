package nodelocal_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// says is what kube-dns answers in TestBytesOfStock, by the first label.
func says(q testutil.Question) *dns.Msg {
	m := new(dns.Msg).SetReply(q.Msg)
	m.RecursionAvailable = true
	rr := func(name string, qtype uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET, Ttl: 30}
	}
	soa := &dns.SOA{Hdr: rr("cluster.local.", dns.TypeSOA), Ns: "ns.dns.cluster.local.", Mbox: "hostmaster.cluster.local.", Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: 30}
	addresses := func(owner string, n int) {
		for i := range n {
			switch q.Type {
			case dns.TypeA, dns.TypeANY:
				m.Answer = append(m.Answer, &dns.A{Hdr: rr(owner, dns.TypeA), A: net.IPv4(10, 96, 0, byte(i+1))})
			case dns.TypeAAAA:
				m.Answer = append(m.Answer, &dns.AAAA{Hdr: rr(owner, dns.TypeAAAA), AAAA: net.ParseIP(fmt.Sprintf("fd00:96::%x", i+1))})
			}
		}
	}
	kind, number, _ := strings.Cut(strings.ToLower(strings.Split(q.Name, ".")[0]), "-")
	n, _ := strconv.Atoi(number)
	switch kind {
	case "gone":
		m.Rcode = dns.RcodeNameError
	case "sick":
		m.Rcode = dns.RcodeServerFailure
	case "refused":
		m.Rcode = dns.RcodeRefused
	case "alias":
		m.Answer = []dns.RR{&dns.CNAME{Hdr: rr(q.Name, dns.TypeCNAME), Target: "edge.example.net."}}
		addresses("edge.example.net.", 2)
	case "many":
		addresses(q.Name, n)
	case "text":
		if q.Type == dns.TypeTXT {
			for left := n; left > 0; left -= 200 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: rr(q.Name, dns.TypeTXT), Txt: []string{strings.Repeat("x", min(left, 200))}})
			}
		}
	case "empty":
	default:
		switch addresses(q.Name, 1); q.Type {
		case dns.TypeMX:
			m.Answer = []dns.RR{&dns.MX{Hdr: rr(q.Name, dns.TypeMX), Preference: 10, Mx: "mx.example.net."}}
			m.Extra = []dns.RR{&dns.A{Hdr: rr("mx.example.net.", dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
		case dns.TypeSRV:
			m.Answer = []dns.RR{&dns.SRV{Hdr: rr(q.Name, dns.TypeSRV), Port: 53, Target: "srv.example.net."}}
		}
	}
	if len(m.Answer) == 0 && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError) {
		m.Ns = []dns.RR{soa}
	}
	m.Compress = true
	if o := q.Msg.IsEdns0(); o != nil {
		m.SetEdns0(o.UDPSize(), o.Do())
	}
	return m
}

// way is how a query is put.
type way struct {
	name   string
	put    func(m *dns.Msg)
	raw    func(b []byte) []byte
	once   bool // for one name
	silent bool // no server answers it, which takes its time
}

func edns(size uint16, do bool, options ...dns.EDNS0) func(*dns.Msg) {
	return func(m *dns.Msg) {
		m.SetEdns0(size, do)
		m.IsEdns0().Option = options
	}
}

var ways = []way{
	{name: "plain"},
	{name: "no RD", put: func(m *dns.Msg) { m.RecursionDesired = false }},
	{name: "AD", put: func(m *dns.Msg) { m.AuthenticatedData = true }},
	{name: "CD", put: func(m *dns.Msg) { m.CheckingDisabled = true }},
	{name: "AD, CD, DO", put: func(m *dns.Msg) { m.AuthenticatedData, m.CheckingDisabled = true, true; m.SetEdns0(4096, true) }},
	{name: "size 0", put: edns(0, false)}, {name: "size 512", put: edns(512, false)}, {name: "size 1232", put: edns(1232, false)},
	{name: "size 1452", put: edns(1452, false)}, {name: "size 4096", put: edns(4096, false)}, {name: "size 65535", put: edns(65535, false)},
	{name: "DO", put: edns(1232, true)},
	{name: "EDNS flags", put: func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().Hdr.Ttl |= 0x4155 }},
	{once: true, name: "EDNS version 1", put: func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }},
	{once: true, name: "extended code", put: edns(1232, false), raw: func(b []byte) []byte { b[len(b)-6] = 1; return b }},
	{once: true, name: "two OPT", put: func(m *dns.Msg) { m.SetEdns0(1232, false); m.Extra = append(m.Extra, m.Extra[0]) }},
	{once: true, name: "OPT before another", put: func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.Extra = append(m.Extra, &dns.A{Hdr: dns.RR_Header{Name: "x.", Rrtype: 1, Class: 1}, A: net.IPv4(1, 2, 3, 4)})
	}},
	{once: true, name: "OPT of a name", put: func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().Hdr.Name = "x." }},
	{name: "cookie", put: edns(1232, false, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1bc2d3e4f5"})},
	{name: "NSID", put: edns(1232, false, &dns.EDNS0_NSID{Code: dns.EDNS0NSID})},
	{name: "subnet", put: edns(1232, false, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)})},
	{name: "keepalive", put: edns(1232, false, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})},
	{name: "padding, unknown", put: edns(1232, false, &dns.EDNS0_PADDING{Padding: make([]byte, 40)}, &dns.EDNS0_LOCAL{Code: 65001, Data: []byte("x")})},
	{once: true, name: "TSIG", put: func(m *dns.Msg) {
		m.Extra = []dns.RR{&dns.TSIG{Hdr: dns.RR_Header{Name: "key.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256}}
	}},
	{once: true, name: "two questions", put: func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
	{once: true, name: "no question", put: func(m *dns.Msg) { m.Question = nil }},
	{once: true, silent: true, name: "response", put: func(m *dns.Msg) { m.Response = true }},
	{once: true, name: "AA, TC, RA, Z, rcode", put: func(m *dns.Msg) {
		m.Authoritative, m.Truncated, m.RecursionAvailable, m.Zero, m.Rcode = true, true, true, true, 5
	}},
	{once: true, name: "opcode 1", put: func(m *dns.Msg) { m.Opcode = 1 }}, {once: true, name: "NOTIFY", put: func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }},
	{once: true, name: "UPDATE", put: func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }}, {once: true, name: "opcode 15", put: func(m *dns.Msg) { m.Opcode = 15 }},
	{name: "mixed case", raw: func(b []byte) []byte {
		for i := 12; i < len(b)-4; i += 2 {
			if 'a' <= b[i] && b[i] <= 'z' {
				b[i] -= 'a' - 'A'
			}
		}
		return b
	}},
	{once: true, name: "a byte more", raw: func(b []byte) []byte { return append(b, 0) }},
	{once: true, name: "a byte less", raw: func(b []byte) []byte { return b[:len(b)-1] }},
	{once: true, name: "a header", raw: func(b []byte) []byte { return b[:12] }},
	{once: true, silent: true, name: "eleven bytes", raw: func(b []byte) []byte { return b[:11] }},
	{once: true, name: "a pointer to itself", raw: func(b []byte) []byte { return append(b[:12:12], 0xc0, 12, 0, 1, 0, 1) }},
	{once: true, name: "a pointer to the header", raw: func(b []byte) []byte { return append(b[:12:12], 1, 'a', 0xc0, 4, 0, 1, 0, 1) }},
	{once: true, name: "a long label", raw: func(b []byte) []byte { b[12] = 63; return b }},
	{once: true, name: "a name of 256 octets", raw: func(b []byte) []byte {
		name := strings.Repeat("\x3f"+strings.Repeat("a", 63), 3) + "\x3e" + strings.Repeat("a", 62) + "\x00"
		return append(append(b[:12:12], name...), 0, 1, 0, 1)
	}},
	{once: true, name: "an additional count", raw: func(b []byte) []byte { b[11] = 1; return b }},
	{once: true, name: "a dot in a label", raw: func(b []byte) []byte { b[13] = '.'; return b }},
	{once: true, name: "a zero in a label", raw: func(b []byte) []byte { b[13] = 0; return b }},
	{once: true, name: "an octet above ASCII", raw: func(b []byte) []byte { b[13] = 0xe4; return b }},
	{once: true, name: "a backslash", raw: func(b []byte) []byte { b[13] = '\\'; return b }},
}

// message is a query as it is sent.
type message struct {
	wire   []byte
	silent bool // see way
}

// put are all queries of TestBytesOfStock, by what they are.
func put(t *testing.T) (what []string, wire []message) {
	t.Helper()
	long := strings.Repeat(strings.Repeat("a", 62)+".", 4)
	kinds := map[string][]uint16{
		"web.cluster.local.": {dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeSRV, dns.TypeANY, dns.TypeDS, dns.TypeAXFR, dns.TypeOPT, 0, dns.TypeHTTPS, 65280},
		".":                  {dns.TypeA, dns.TypeNS}, "cluster.local.": {dns.TypeA}, "1.0.96.10.in-addr.arpa.": {dns.TypePTR}, "www.example.org.": {dns.TypeA},
		long[:250] + ".": {dns.TypeA}, "_dns._udp.kube-dns.cluster.local.": {dns.TypeSRV},
	}
	for _, kind := range []string{"gone", "sick", "refused", "alias", "empty", "many-3", "many-31", "many-100"} {
		kinds[kind+".cluster.local."] = []uint16{dns.TypeA, dns.TypeAAAA}
	}
	for _, size := range []int{430, 465, 466, 467, 468, 469, 1100, 1173, 1174, 1175, 1186, 4000, 60000} {
		kinds[fmt.Sprintf("text-%d.cluster.local.", size)] = []uint16{dns.TypeTXT}
	}
	for name, types := range kinds {
		for _, qtype := range types {
			for _, w := range ways {
				if (w.once || w.raw != nil) && name == "." || w.once && (name != "web.cluster.local." || qtype != dns.TypeA && qtype != dns.TypeTXT) {
					continue
				}
				m := new(dns.Msg).SetQuestion(name, qtype)
				if w.put != nil {
					w.put(m)
				}
				b, err := m.Pack()
				if err != nil {
					t.Fatal(name, w.name, err)
				}
				if w.raw != nil {
					b = w.raw(b)
				}
				what, wire = append(what, fmt.Sprintf("%.40s %s, %s", name, dns.Type(qtype), w.name)), append(wire, message{b, w.silent})
			}
		}
	}
	return what, wire
}

// TestAnswersOfStock queries a stock CoreDNS with NodeLocal DNSCache's Corefile, then the agent in its place with the same one: every type
// and size, each bit, EDNS in its forms, and what is no query. Each query is sent twice, so that it is a miss and a hit, over UDP and TCP.
// What is reported is the same, but for TTLs, names' case, and whether a name is written in full or as a pointer.
func TestAnswersOfStock(t *testing.T) {
	t.Parallel() // it waits for answers that do not come
	n := cell{testutil.IPv4, testutil.NFTables, ""}.node(t)
	n.DNS.Behave(testutil.Behaviour{Handler: says})
	n.External.Behave(testutil.Behaviour{Handler: says})
	pod := n.pod()
	what, wire := put(t)
	nodelocal.InstallBy(n.Host, n.iptables(), n.served()...)
	corefile := nodelocal.Corefile(n.locals()[0], n.onLink[0], n.upstream(true))
	n.write("stock/Corefile", strings.ReplaceAll(corefile, "    errors\n", "    errors\n    bufsize 1232\n")) // as the agent's by itself
	stock := n.Host.Start(made.Path("coredns"), "-conf", n.path("stock/Corefile"))
	testutil.Eventually(t, func() error { return alive(pod.NetNS, local4) })
	want := n.tell(pod.NetNS, what, wire, func() bool { return true })
	stock.Kill()
	ours, lost := n.serve(), 0
	got := n.tell(pod.NetNS, what, wire, func() bool {
		was, log := lost, ours.Output()
		lost = strings.Count(log, "msg=\"lease lost; kube-dns answers")
		return lost == was && strings.Count(log, "msg=\"lease granted\"")-lost == 4
	})
	for i := range wire {
		for j, a := range want[i] {
			// The stock cache cannot write an owner in another case as a pointer, so that less fits.
			if cased := strings.HasSuffix(what[i], "mixed case") && strings.Contains(a, "flags: qr tc"); cased {
				continue
			}
			if b := got[i][j]; a != b {
				t.Errorf("%s, %s (-stock +ours):\n%s", what[i], [...]string{"UDP", "TCP", "UDP again", "TCP again"}[j], cmp.Diff(a, b))
			}
		}
	}
}

func alive(from *testutil.NetNS, at netip.Addr) error {
	_, err := testutil.Ask(from, netip.AddrPortFrom(at, 53), "web.cluster.local.", dns.TypeA, "tcp", testutil.AskOptions{})
	return err
}

// tell sends each query twice over both protocols, and returns what was answered: "" for nothing. It does so again where kube-dns, in this
// process, was silent, or gave the answers because the server did not serve.
func (n *node) tell(from *testutil.NetNS, what []string, wire []message, serves func() bool) [][4]string {
	n.t.Helper()
	out, conns := make([][4]string, len(wire)), map[string]net.Conn{}
	one := func(k int, w message) error {
		for i, network := range []string{"udp", "tcp", "udp", "tcp"} {
			if conns[network] == nil {
				from.Do(func() { conns[network] = dial(n.t, network) })
			}
			m, wait := slices.Clone(w.wire), testutil.Attempt
			if w.silent {
				wait = testutil.Silence
			}
			if len(m) > 1 {
				binary.BigEndian.PutUint16(m, uint16(k))
			}
			answer, alive := exchange(n.t, conns[network], network, m, uint16(k), wait)
			if !alive {
				_ = conns[network].Close()
				conns[network] = nil
			}
			out[k][i] = normal(answer)
		}
		silent := strings.Contains(strings.Join(out[k][:], ""), "status: servfail") && strings.Contains(out[k][0], "query: 1,") && !strings.HasPrefix(what[k], "sick")
		return testutil.ErrorIf(silent || !serves(), "%s: %q", what[k], out[k])
	}
	for k, w := range wire { // one behind the other, so that no entry of the cache ends between them
		testutil.Eventually(n.t, func() error { return one(k, w) })
	}
	for _, conn := range conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	return out
}

func dial(t *testing.T, network string) net.Conn {
	t.Helper()
	conn, err := net.Dial(network, netip.AddrPortFrom(local4, 53).String())
	testutil.Must(t, err)
	return conn
}

// exchange sends a message and returns the answer with its ID, and whether the connection is of further use.
func exchange(t *testing.T, conn net.Conn, network string, m []byte, id uint16, wait time.Duration) (answer []byte, alive bool) {
	t.Helper()
	if network == "tcp" {
		m = append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)
	}
	conn.SetDeadline(time.Now().Add(wait))
	if _, err := conn.Write(m); err != nil {
		return nil, false
	}
	for b := make([]byte, 1<<16+2); ; {
		var size int
		if network == "udp" {
			got, err := conn.Read(b)
			if err != nil {
				return nil, true
			}
			size = got
		} else {
			if _, err := io.ReadFull(conn, b[:2]); err != nil {
				return nil, false
			}
			size = int(binary.BigEndian.Uint16(b))
			if _, err := io.ReadFull(conn, b[:size]); err != nil {
				return nil, false
			}
		}
		if size >= 12 && binary.BigEndian.Uint16(b) == id {
			return slices.Clone(b[:size]), true
		}
	}
}

// normal is an answer as text without its TTLs, in lower case but for the query: the agent's owner names are in the query's case. Of
// EDNS only DO counts: other flags mean nothing, and an upstream that says them back is passed on by the stock cache.
func normal(b []byte) string {
	if b == nil {
		return ""
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return err.Error()
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if rr.Header().Rrtype != dns.TypeOPT {
			rr.Header().Ttl = 0
		}
	}
	if o := m.IsEdns0(); o != nil {
		o.Hdr.Ttl &^= 0x7fff
	}
	return fmt.Sprint(m.Question) + strings.ToLower(m.String())
}
