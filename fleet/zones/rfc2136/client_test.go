package rfc2136

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

const origin = "example.org."

var key = Key{Name: "Key.example.org", Algorithm: "hmac-sha256", Secret: "MDEyMzQ1Njc4OWFiY2RlZg=="}

// An error that stays the same has the same text at each try, whatever port the connection had.
func TestErrorWithoutPort(t *testing.T) {
	server := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 53), Port: 53}
	for _, local := range []string{"192.0.2.1", "2001:db8::1"} {
		source := &net.TCPAddr{IP: net.ParseIP(local), Port: 43210}
		read := &net.OpError{Op: "read", Net: "tcp", Source: source, Addr: server, Err: io.ErrNoProgress}
		look := &net.DNSError{Name: "ns.example", Server: "192.0.2.3:53", Err: read.Error()}
		for want, err := range map[string]error{
			"read tcp 192.0.2.53:53: " + io.ErrNoProgress.Error():                                    &Error{Kind: NoAnswer, Err: read},
			"lookup ns.example on 192.0.2.3:53: read tcp 192.0.2.53:53: " + io.ErrNoProgress.Error(): &Error{Kind: Unreachable, Err: look},
		} {
			if err.Error() != want {
				t.Errorf("%q, want %q", err, want)
			}
		}
	}
}

// script returns the messages with which a server answers a query; mac is the query's.
type script = func(q *dns.Msg, mac string) [][]byte

// client has a server that answers one query by a script, and ends the connection. query waits for that, and returns the query.
func client(t *testing.T, answers script) (c *Client, query func() *dns.Msg) {
	var q *dns.Msg
	done := make(chan struct{})
	serve := func(conn net.Conn) {
		defer close(done)
		far := &dns.Conn{Conn: conn, TsigSecret: map[string]string{dns.CanonicalName(key.Name): key.Secret}}
		defer far.Close()
		var err error
		if q, err = far.ReadMsg(); err != nil || q.IsTsig() == nil {
			t.Errorf("the query %v: %v", q, err)
			return
		}
		for _, m := range answers(q, q.IsTsig().MAC) {
			if _, err := far.Write(m); err != nil {
				return
			}
		}
	}
	query = func() *dns.Msg { <-done; return q }
	t.Cleanup(func() { query() })
	return &Client{Server: "192.0.2.1:53", Zone: origin, Key: func() (Key, error) { return key, nil }, Timeout: 2 * time.Second,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go serve(far)
			return near, nil
		}}, query
}

// answer makes a signed answer; it returns the signature that the next one covers.
func answer(t *testing.T, q *dns.Msg, mac string, later bool, edit func(*dns.Msg, *dns.TSIG)) (wire []byte, next string) {
	t.Helper()
	m := new(dns.Msg)
	m.SetReply(q)
	m.Opcode = q.Opcode
	m.SetTsig(dns.CanonicalName(key.Name), dns.HmacSHA256, 300, time.Now().Unix())
	if edit != nil {
		edit(m, m.IsTsig())
	}
	wire, next, err := dns.TsigGenerate(m, key.Secret, mac, later)
	testutil.Must(t, err)
	return wire, next
}

// answers is a script of one signed answer.
func answers(t *testing.T, edit func(*dns.Msg, *dns.TSIG)) script {
	return func(q *dns.Msg, mac string) [][]byte {
		wire, _ := answer(t, q, mac, false, edit)
		return [][]byte{wire}
	}
}

func rrs(t testing.TB, lines ...string) []dns.RR {
	t.Helper()
	var out []dns.RR
	for _, l := range lines {
		rr, err := dns.NewRR(l)
		testutil.Must(t, err)
		out = append(out, rr)
	}
	return out
}

// A server's refusal is one kind of error each; none of them is taken for a change that was made.
func TestUpdateAnswers(t *testing.T) {
	code := func(rcode int) func(*dns.Msg, *dns.TSIG) { return func(m *dns.Msg, _ *dns.TSIG) { m.Rcode = rcode } }
	failed := func(rcode int, tsig uint16) func(*dns.Msg, *dns.TSIG) {
		return func(m *dns.Msg, ts *dns.TSIG) { m.Rcode, ts.Error = rcode, tsig }
	}
	for name, tt := range map[string]struct {
		edit   func(*dns.Msg, *dns.TSIG)
		want   Kind
		unsure bool
	}{
		"taken":                {nil, "", false},
		"NXRRSET":              {code(dns.RcodeNXRrset), Prerequisite, false},
		"YXRRSET":              {code(dns.RcodeYXRrset), Prerequisite, false},
		"NXDOMAIN":             {code(dns.RcodeNameError), Prerequisite, false},
		"YXDOMAIN":             {code(dns.RcodeYXDomain), Prerequisite, false},
		"REFUSED":              {code(dns.RcodeRefused), NotPermitted, false},
		"NOTAUTH":              {code(dns.RcodeNotAuth), NotPermitted, false},
		"NOTZONE":              {code(dns.RcodeNotZone), NotPermitted, false},
		"SERVFAIL":             {code(dns.RcodeServerFailure), ServerFailed, false},
		"FORMERR":              {code(dns.RcodeFormatError), Refused, false},
		"a code of no name":    {code(14), Refused, false},
		"BADKEY":               {failed(dns.RcodeNotAuth, dns.RcodeBadKey), NotPermitted, false},
		"BADSIG":               {failed(dns.RcodeNotAuth, dns.RcodeBadSig), BadKey, false},
		"BADTIME":              {failed(dns.RcodeNotAuth, dns.RcodeBadTime), ClockSkew, false},
		"another key's":        {func(_ *dns.Msg, ts *dns.TSIG) { ts.Hdr.Name = "other.example.org." }, BadAnswer, true},
		"a question":           {func(m *dns.Msg, _ *dns.TSIG) { m.Response = false }, BadAnswer, true},
		"an answer of old":     {func(_ *dns.Msg, ts *dns.TSIG) { ts.TimeSigned -= 1000 }, ClockSkew, false},
		"an answer to a query": {func(m *dns.Msg, _ *dns.TSIG) { m.Opcode = dns.OpcodeQuery }, BadAnswer, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, query := client(t, answers(t, tt.edit))
				pre, change := rrs(t, "a.example.org. 0 IN A 192.0.2.1"), rrs(t, "b.example.org. 60 IN A 192.0.2.2")
				err := c.Update(t.Context(), pre, change)
				if KindOf(err) != tt.want || (err == nil) != (tt.want == "") || Unsure(err) != tt.unsure {
					t.Errorf("%v: kind %q, unsure %v", err, KindOf(err), Unsure(err))
				}
				q := query()
				if q.Opcode != dns.OpcodeUpdate || len(q.Answer) != 1 || len(q.Ns) != 1 || q.Question[0].Name != origin {
					t.Errorf("asked %v", q)
				}
				if change[0].Header().Ttl != 60 || change[0].Header().Class != dns.ClassINET {
					t.Error("the caller's RRs were changed")
				}
			})
		})
	}
}

// An answer without a valid signature is a BadAnswer. An unsigned answer with an error code is the error of that code.
func TestSignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unsigned := func(rcode int) script {
			return func(q *dns.Msg, _ string) [][]byte {
				m := new(dns.Msg)
				m.SetReply(q)
				m.Opcode, m.Rcode = q.Opcode, rcode
				wire, _ := m.Pack()
				return [][]byte{wire}
			}
		}
		for name, tt := range map[string]struct {
			script script
			want   Kind
		}{
			"unsigned":       {unsigned(dns.RcodeSuccess), BadAnswer},
			"unsigned error": {unsigned(dns.RcodeRefused), NotPermitted},
			"signed for another": {func(q *dns.Msg, _ string) [][]byte {
				w, _ := answer(t, q, strings.Repeat("00", 32), false, nil)
				return [][]byte{w}
			}, BadAnswer},
			"changed on its way": {func(q *dns.Msg, mac string) [][]byte {
				w, _ := answer(t, q, mac, false, nil)
				w[3] |= 0x80
				return [][]byte{w}
			}, BadAnswer},
			"another question's": {func(q *dns.Msg, mac string) [][]byte {
				w, _ := answer(t, q, mac, false, nil)
				w[1] ^= 1
				return [][]byte{w}
			}, BadAnswer},
			"no message": {func(*dns.Msg, string) [][]byte { return [][]byte{{1, 2, 3}} }, BadAnswer},
			"nothing":    {func(*dns.Msg, string) [][]byte { return nil }, NoAnswer},
		} {
			c, _ := client(t, tt.script)
			if err := c.Update(t.Context(), nil, nil); KindOf(err) != tt.want {
				t.Errorf("%s: %v is %q, want %q", name, err, KindOf(err), tt.want)
			}
		}
	})
}

// BADTIME reports how far the clocks differ: RFC 8945 section 5.2.3.
func TestClockSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := client(t, func(q *dns.Msg, mac string) [][]byte {
			wire, _ := answer(t, q, mac, false, func(m *dns.Msg, ts *dns.TSIG) {
				at := time.Unix(int64(q.IsTsig().TimeSigned), 0)
				m.Rcode, ts.Error, ts.TimeSigned = dns.RcodeNotAuth, dns.RcodeBadTime, uint64(at.Unix())
				ts.OtherLen, ts.OtherData = 6, hexTime(at.Add(-2*time.Hour))
			})
			return [][]byte{wire}
		})
		err := c.Update(t.Context(), nil, nil)
		if e := (*Error)(nil); !errors.As(err, &e) || e.Kind != ClockSkew || e.Skew != -2*time.Hour || !strings.Contains(err.Error(), "-7200 s") {
			t.Errorf("%v", err)
		}
	})
}

func hexTime(at time.Time) string {
	const digits = "0123456789abcdef"
	out := ""
	for i := 44; i >= 0; i -= 4 {
		out += string(digits[at.Unix()>>i&15])
	}
	return out
}

// A call ends with its context, and with its timeout, whatever the server does.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		hang := func(*dns.Msg, string) [][]byte { <-block; return nil }
		begun := time.Now()
		c, _ := client(t, hang)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err, took := c.Update(ctx, nil, nil), time.Since(begun); KindOf(err) != NoAnswer || took != time.Second {
			t.Errorf("the context ended after a second, the call after %v: %v", took, err)
		}
		for _, answer := range []time.Duration{0, time.Minute} {
			d, _ := client(t, hang)
			d.Answer = answer
			begun = time.Now()
			if err, took := d.Update(t.Context(), nil, nil), time.Since(begun); KindOf(err) != NoAnswer || took != max(d.Timeout, answer) {
				t.Errorf("an update with %v for its answer ended after %v: %v", answer, took, err)
			}
		}
		d, _ := client(t, hang)
		d.Answer = time.Minute
		begun = time.Now()
		if _, err := d.Serial(t.Context()); KindOf(err) != NoAnswer || time.Since(begun) != d.Timeout {
			t.Errorf("a query with a timeout of %v ended after %v: %v", d.Timeout, time.Since(begun), err)
		}
		close(block)
		e := &Client{Server: "192.0.2.1:53", Zone: origin, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }}
		if _, err := e.Serial(t.Context()); KindOf(err) != Unreachable || Unsure(err) {
			t.Error(err)
		}
	})
}

func TestTooLarge(t *testing.T) {
	e := &Client{Zone: origin, Key: func() (Key, error) { return key, nil }}
	long := strings.Repeat("x", 250)
	var many []dns.RR
	for range 300 {
		many = append(many, &dns.TXT{Hdr: dns.RR_Header{Name: origin, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{long}})
	}
	if err := e.Update(t.Context(), nil, many); err == nil || Unsure(err) {
		t.Error(err)
	}
}

func TestKeyValidate(t *testing.T) {
	testutil.Check(t, key.Validate())
	for want, k := range map[string]Key{
		"no domain name": {Algorithm: "hmac-sha256", Secret: key.Secret},
		"hmac-md5":       {Name: "a.", Algorithm: "hmac-md5.sig-alg.reg.int.", Secret: key.Secret},
		"no base64":      {Name: "a.", Algorithm: "hmac-sha256", Secret: "s3cret?"},
		"its secret":     {Name: "a.", Algorithm: "hmac-sha256"},
	} {
		if err := k.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
