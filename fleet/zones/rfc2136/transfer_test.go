package rfc2136

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func soa(serial int) string {
	return fmt.Sprintf("example.org. 60 IN SOA ns.example.org. root.example.org. %d 60 60 600 60", serial)
}

func a(n int) string { return fmt.Sprintf("a%d.example.org. 60 IN A 192.0.2.%d", n, n) }

// messages cuts a transfer where a line is empty.
func messages(t testing.TB, lines []string) [][]dns.RR {
	t.Helper()
	var out [][]dns.RR
	for _, part := range strings.Split(strings.Join(lines, "\n"), "\n\n") {
		out = append(out, rrs(t, strings.Split(part, "\n")...))
	}
	return out
}

func text(rrs []dns.RR) (out []string) {
	for _, rr := range rrs {
		out = append(out, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	return out
}

var transfers = map[string]struct {
	since int // 0: AXFR
	lines []string
	fault string // empty: whole; "cut": more is awaited
	full  []string
	steps []string // from>to -deleted +added
}{
	"whole":                      {0, []string{soa(7), a(1), a(2), soa(7)}, "", []string{soa(7), a(1), a(2)}, nil},
	"whole in several messages":  {0, []string{soa(7), "", a(1), "", a(2), soa(7)}, "", []string{soa(7), a(1), a(2)}, nil},
	"whole, nothing in it":       {0, []string{soa(7), soa(7)}, "", []string{soa(7)}, nil},
	"cut short":                  {0, []string{soa(7), a(1), a(2)}, "cut", nil, nil},
	"an SOA alone":               {0, []string{soa(7)}, "cut", nil, nil},
	"more after the end":         {0, []string{soa(7), a(1), soa(7), a(2)}, "after the end", nil, nil},
	"another serial at the end":  {0, []string{soa(7), a(1), soa(8)}, "serial 8", nil, nil},
	"no SOA first":               {0, []string{a(1), soa(7)}, "does not begin", nil, nil},
	"an RR from outside":         {0, []string{soa(7), "a.example.com. 60 IN A 192.0.2.1", soa(7)}, "a.example.com.", nil, nil},
	"an SOA from below":          {0, []string{soa(7), "a.example.org. 60 IN SOA a. b. 7 1 1 1 1", soa(7)}, "an SOA of a.", nil, nil},
	"increment":                  {5, []string{soa(7), soa(5), a(1), soa(7), a(2), soa(7)}, "", nil, []string{"5>7 -a1 +a2"}},
	"two steps":                  {5, []string{soa(7), soa(5), a(1), soa(6), a(2), soa(6), a(2), soa(7), soa(7)}, "", nil, []string{"5>6 -a1 +a2", "6>7 -a2"}},
	"increment in messages":      {5, []string{soa(7), "", soa(5), "", a(1), soa(7), "", a(2), soa(7)}, "", nil, []string{"5>7 -a1 +a2"}},
	"increment, the whole":       {5, []string{soa(7), a(1), soa(7)}, "", []string{soa(7), a(1)}, nil},
	"nothing new":                {7, []string{soa(7)}, "", nil, nil},
	"the server is older":        {9, []string{soa(7)}, "", nil, nil},
	"over the serials' end":      {1, []string{strings.Replace(soa(0), " 0 60", " 4294967295 60", 1)}, "", nil, nil},
	"newer, an SOA alone":        {5, []string{soa(7)}, "cut", nil, nil},
	"increment cut in deletions": {5, []string{soa(7), soa(5), a(1)}, "cut", nil, nil},
	"increment cut in additions": {5, []string{soa(7), soa(5), a(1), soa(7), a(2)}, "cut", nil, nil},
	"increment from elsewhere":   {5, []string{soa(7), soa(4), a(1), soa(7), soa(7)}, "since 4", nil, nil},
	"steps that do not meet":     {5, []string{soa(8), soa(5), soa(6), a(1), soa(7), soa(8), soa(8)}, "step from 7", nil, nil},
	"increment, more afterwards": {5, []string{soa(7), soa(5), soa(7), soa(7), a(1)}, "after the end", nil, nil},
}

func assemble(since int, msgs [][]dns.RR) (*Transfer, string) {
	as := &assembler{zone: origin, incremental: since != 0, since: uint32(since)}
	for _, m := range msgs {
		for _, rr := range m {
			if err := as.add(rr); err != nil {
				return nil, err.Error()
			}
		}
		if done, err := as.end(); err != nil {
			return nil, err.Error()
		} else if done {
			return &as.t, ""
		}
	}
	return nil, "cut"
}

func TestAssemble(t *testing.T) {
	for name, tt := range transfers {
		tr, fault := assemble(tt.since, messages(t, tt.lines))
		if (fault == "") != (tt.fault == "") || !strings.Contains(fault, tt.fault) {
			t.Errorf("%s: %q, want %q", name, fault, tt.fault)
			continue
		}
		if fault != "" {
			continue
		}
		var steps []string
		for _, d := range tr.Steps {
			s := fmt.Sprintf("%d>%d", d.From, d.To)
			if d.SOA == nil || d.SOA.Serial != d.To {
				t.Errorf("%s: a step to %d ends with %v", name, d.To, d.SOA)
			}
			for _, rr := range d.Deleted {
				s += " -" + dns.SplitDomainName(rr.Header().Name)[0]
			}
			for _, rr := range d.Added {
				s += " +" + dns.SplitDomainName(rr.Header().Name)[0]
			}
			steps = append(steps, s)
		}
		testutil.Equal(t, name+": steps", tt.steps, steps)
		testutil.Equal(t, name+": full", text(rrs(t, tt.full...)), text(tr.Full))
	}
}

// wantAXFR transfers a zone of at most so many records (0: any), which gives so many, or an error of a kind.
func wantAXFR(t *testing.T, name string, answers script, most int, kind Kind, records int) {
	t.Helper()
	c, _ := client(t, answers)
	c.Most = most
	tr, err := c.AXFR(t.Context())
	if KindOf(err) != kind || (tr == nil) != (kind != "") || tr != nil && len(tr.Full) != records {
		t.Errorf("%s: %+v, %v; want %d records or %q", name, tr, err, records, kind)
	}
}

// On the wire a transfer is taken whole or not at all, and each of its messages is covered by a signature.
func TestTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parts := messages(t, []string{soa(7), a(1), "", a(2), "", a(3), soa(7)})
		send := func(n int, edit func(i int, m *dns.Msg, ts *dns.TSIG)) script {
			return func(q *dns.Msg, mac string) (out [][]byte) {
				for i, part := range parts[:n] {
					wire, next := answer(t, q, mac, i > 0, func(m *dns.Msg, ts *dns.TSIG) {
						m.Answer = part
						if edit != nil {
							edit(i, m, ts)
						}
					})
					out, mac = append(out, wire), next
				}
				return out
			}
		}
		for name, tt := range map[string]struct {
			script script
			want   Kind
		}{
			"whole":     {send(3, nil), ""},
			"cut short": {send(2, nil), Cut},
			"refused":   {send(1, func(_ int, m *dns.Msg, _ *dns.TSIG) { m.Rcode, m.Answer = dns.RcodeRefused, nil }), NotPermitted},
			"empty":     {send(1, func(_ int, m *dns.Msg, _ *dns.TSIG) { m.Answer = nil }), BadAnswer},
			"an error amid": {send(3, func(i int, m *dns.Msg, _ *dns.TSIG) {
				if i == 1 {
					m.Rcode = dns.RcodeServerFailure
				}
			}), ServerFailed},
			"an unsigned part that the next signature does not cover": {func(q *dns.Msg, mac string) [][]byte {
				out := send(3, nil)(q, mac)
				m := new(dns.Msg)
				m.SetReply(q)
				m.Answer = parts[1]
				out[1], _ = m.Pack()
				return out
			}, BadAnswer},
			"parts in another order": {func(q *dns.Msg, mac string) [][]byte {
				out := send(3, nil)(q, mac)
				out[1], out[2] = out[2], out[1]
				return out
			}, BadAnswer},
		} {
			wantAXFR(t, name, tt.script, 0, tt.want, 4)
		}
		for most, want := range map[int]Kind{4: TooLarge, 5: "", 0: ""} { // the SOA stands there twice
			wantAXFR(t, fmt.Sprintf("at most %d records", most), send(3, nil), most, want, 4)
		}
		txt := &dns.TXT{Hdr: dns.RR_Header{Name: "a." + origin, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: slices.Repeat([]string{strings.Repeat("x", 255)}, 5*Octets/255)}
		longest := strings.Repeat(strings.Repeat("x", 63)+".", 3)
		longest += strings.Repeat("x", 255-len(longest)-len(origin)-2) + "." + origin // RFC 1035 section 2.3.4
		long := &dns.A{Hdr: dns.RR_Header{Name: longest, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)}
		for name, large := range map[string]struct {
			part []dns.RR
			most int
		}{
			"few records, but large":           {[]dns.RR{txt}, 4},
			"long names, which are compressed": {slices.Repeat([]dns.RR{long}, 97), 100},
		} {
			parts[1] = large.part
			wantAXFR(t, name, send(3, func(_ int, m *dns.Msg, _ *dns.TSIG) { m.Compress = true }), large.most, TooLarge, 0)
		}
	})
}

// covering is a server's provider that signs messages together with the unsigned ones before them.
type covering struct{ unsigned []byte }

func (p covering) Generate(signed []byte, ts *dns.TSIG) ([]byte, error) {
	secret, err := base64.StdEncoding.DecodeString(key.Secret)
	if err != nil {
		return nil, err
	}
	before := 2 + int(binary.BigEndian.Uint16(signed)) // the MAC of the message before
	h := hmac.New(sha256.New, secret)
	h.Write(slices.Concat(signed[:before], p.unsigned, signed[before:]))
	return h.Sum(nil), nil
}

func (covering) Verify([]byte, *dns.TSIG) error { return dns.ErrSig }

// Messages between signed ones may be unsigned, 99 in a row, and the next signature covers them (RFC 8945, section 5.3.1).
func TestTransferPartlySigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(n int, signed func(i int) bool, edit func(i int, m *dns.Msg)) script {
			return func(q *dns.Msg, mac string) (out [][]byte) {
				var unsigned []byte
				later := false
				for i := range n {
					m := new(dns.Msg).SetReply(q)
					if m.Answer = rrs(t, a(i)); i == 0 || i == n-1 {
						m.Answer = rrs(t, soa(7))
					}
					var wire []byte
					var err error
					if signed(i) {
						m.SetTsig(dns.CanonicalName(key.Name), dns.HmacSHA256, 300, time.Now().Unix())
						wire, mac, err = dns.TsigGenerateWithProvider(m, covering{unsigned}, mac, later)
						unsigned, later = nil, true
					} else {
						wire, err = m.Pack()
						unsigned = append(unsigned, wire...)
					}
					if err != nil {
						t.Error(err)
						return out
					}
					if edit != nil {
						edit(i, m)
						if !signed(i) {
							wire, _ = m.Pack()
						}
					}
					out = append(out, wire)
				}
				return out
			}
		}
		ends := func(n int) func(int) bool { return func(i int) bool { return i == 0 || i == n-1 } }
		for name, tt := range map[string]struct {
			n      int
			script script
			want   Kind
		}{
			"each signed":                  {5, send(5, func(int) bool { return true }, nil), ""},
			"first and last signed":        {5, send(5, ends(5), nil), ""},
			"every third signed":           {7, send(7, func(i int) bool { return i%3 == 0 }, nil), ""},
			"99 unsigned":                  {101, send(101, ends(101), nil), ""},
			"100 unsigned":                 {102, send(102, ends(102), nil), BadAnswer},
			"first unsigned":               {3, send(3, func(i int) bool { return i == 2 }, nil), BadAnswer},
			"last unsigned":                {3, send(3, func(i int) bool { return i == 0 }, nil), BadAnswer},
			"an unsigned one changed":      {4, send(4, ends(4), func(i int, m *dns.Msg) { m.Answer[0].Header().Ttl += uint32(i) }), BadAnswer},
			"an unsigned one has an error": {4, send(4, ends(4), func(i int, m *dns.Msg) { m.Rcode = dns.RcodeServerFailure * (i % 2) }), ServerFailed},
		} {
			wantAXFR(t, name, tt.script, 0, tt.want, tt.n-1)
		}
	})
}

func TestIXFRAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, query := client(t, answers(t, func(m *dns.Msg, _ *dns.TSIG) { m.Answer = rrs(t, soa(7)) }))
		tr, err := c.IXFR(t.Context(), 7)
		if err != nil || tr.Serial != 7 || tr.Full != nil || tr.Steps != nil {
			t.Errorf("%+v, %v", tr, err)
		}
		if q := query(); q.Question[0].Qtype != dns.TypeIXFR || q.Ns[0].(*dns.SOA).Serial != 7 {
			t.Errorf("asked %v", q)
		}
	})
}

func TestSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			records []string
			want    uint32
		}{"an SOA": {[]string{soa(7)}, 7}, "none": {nil, 0}, "another zone's": {[]string{"org. 60 IN SOA a. b. 7 1 1 1 1"}, 0}} {
			c, _ := client(t, answers(t, func(m *dns.Msg, _ *dns.TSIG) { m.Answer = rrs(t, tt.records...) }))
			if n, err := c.Serial(t.Context()); n != tt.want || (err == nil) != (tt.want != 0) {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
	})
}

func TestTXT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			rcode   int
			records []string
			want    int
			kind    Kind
		}{
			"two":      {dns.RcodeSuccess, []string{`a.example.org. 60 IN TXT "x"`, `a.example.org. 60 IN TXT "y"`}, 2, ""},
			"none":     {dns.RcodeSuccess, nil, 0, ""},
			"no name":  {dns.RcodeNameError, nil, 0, ""},
			"refused":  {dns.RcodeRefused, nil, 0, NotPermitted},
			"SERVFAIL": {dns.RcodeServerFailure, nil, 0, ServerFailed},
		} {
			c, _ := client(t, answers(t, func(m *dns.Msg, _ *dns.TSIG) { m.Rcode, m.Answer = tt.rcode, rrs(t, tt.records...) }))
			if texts, err := c.TXT(t.Context(), "a.example.org."); len(texts) != tt.want || KindOf(err) != tt.kind {
				t.Errorf("%s: %v, %v", name, texts, err)
			}
		}
	})
}

func TestNewer(t *testing.T) {
	for _, tt := range []struct {
		a, b uint32
		want bool
	}{{2, 1, true}, {1, 2, false}, {1, 1, false}, {0, 1<<32 - 1, true}, {1<<32 - 1, 0, false}} {
		if Newer(tt.a, tt.b) != tt.want {
			t.Errorf("%d after %d is not %v", tt.a, tt.b, tt.want)
		}
	}
}

// Whatever a server sends, a transfer is whole or none: one that is taken begins where it should and ends with its own serial.
func FuzzAssemble(f *testing.F) {
	for _, tt := range transfers {
		f.Add(uint32(tt.since), strings.Join(tt.lines, "\n"))
	}
	f.Fuzz(func(t *testing.T, since uint32, lines string) {
		var msgs [][]dns.RR
		count := 0
		for part := range strings.SplitSeq(lines, "\n\n") {
			var m []dns.RR
			for line := range strings.SplitSeq(part, "\n") {
				if rr, err := dns.NewRR(line); err == nil && rr != nil {
					m = append(m, rr)
					count++
				}
			}
			msgs = append(msgs, m)
		}
		tr, fault := assemble(int(since), msgs)
		if fault != "" {
			return
		}
		n, at := len(tr.Full), since
		for _, d := range tr.Steps {
			if d.From != at {
				t.Fatalf("a step from %d at %d", d.From, at)
			}
			at = d.To
			n += len(d.Deleted) + len(d.Added) + 2
		}
		if tr.Steps != nil && at != tr.Serial || tr.Steps != nil && tr.Full != nil || n > count {
			t.Fatalf("%+v of %d RRs", tr, count)
		}
		if slices.ContainsFunc(tr.Full, func(rr dns.RR) bool { return !dns.IsSubDomain(origin, rr.Header().Name) }) {
			t.Fatal("an RR from outside")
		}
	})
}

// A server's message is read without a failure, and never taken for a success that it is not.
func FuzzAnswer(f *testing.F) {
	m := new(dns.Msg)
	m.SetUpdate(origin)
	wire, _ := m.Pack()
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(dns.Msg)
		if m.Unpack(wire) != nil {
			return
		}
		if err := rcode(m, m.IsTsig()); (err == nil) != (m.Rcode == dns.RcodeSuccess && (m.IsTsig() == nil || m.IsTsig().Error == 0)) {
			t.Errorf("%v of %v", err, m)
		}
	})
}
