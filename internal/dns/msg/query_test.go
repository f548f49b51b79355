package msg

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func packed(t testing.TB, change func(m *dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion("Web.Shop.svc.cluster.local.", dns.TypeAAAA)
	m.Id = 0x1234
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	testutil.Must(t, err)
	return b
}

func opt(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

// TestRead reads plain queries, one after the other into the same Query.
func TestRead(t *testing.T) {
	q := new(Query)
	for _, tc := range []struct {
		name                 string
		change               func(m *dns.Msg)
		rd, cd, ad, do, edns bool
		size                 uint16
		flags                byte
	}{
		{name: "plain", rd: true},
		{name: "OPT and DO", change: opt(4096, true), rd: true, ad: true, do: true, edns: true, size: 4096, flags: 0x80},
		{name: "AD and CD", change: func(m *dns.Msg) { m.AuthenticatedData, m.CheckingDisabled = true, true }, rd: true, cd: true, ad: true},
		{name: "OPT", change: opt(1232, false), rd: true, edns: true, size: 1232},
		{name: "other flags", change: func(m *dns.Msg) { m.SetEdns0(0, false); m.IsEdns0().Hdr.Ttl |= 0x4001 }, rd: true, edns: true, flags: 0x40},
		{name: "without RD", change: func(m *dns.Msg) { m.RecursionDesired = false }},
	} {
		if !q.Read(packed(t, tc.change)) {
			t.Errorf("%s: not plain", tc.name)
			continue
		}
		if q.RD != tc.rd || q.CD != tc.cd || q.AD != tc.ad || q.OPT.DO() != tc.do || q.OPT.Present != tc.edns || q.OPT.Size != tc.size || q.OPT.Flags != tc.flags {
			t.Errorf("%s: read %+v", tc.name, q)
		}
		if q.ID != 0x1234 || q.Type != dns.TypeAAAA || string(q.Question[:5]) != "\x03Web\x04" || string(q.Name()) != "\x03web\x04shop\x03svc\x07cluster\x05local\x00" {
			t.Errorf("%s: asked %q, name %q, type %d", tc.name, q.Question, q.Name(), q.Type)
		}
	}
}

// TestKeyQuery: the query for a key has that key.
func TestKeyQuery(t *testing.T) {
	var k Key
	for _, bits := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
		k.Set(packed(t, nil)[HeaderSize:], bits[0], bits[1])
		q := new(Query)
		if !q.Read(k.Query(7, 1232)) || q.Key != k || q.ID != 7 || !q.RD || q.OPT.Present != bits[0] || q.OPT.Size != 1232 && bits[0] {
			t.Errorf("DO %t, CD %t: %+v", bits[0], bits[1], q)
		}
	}
	testutil.Equal(t, "type", dns.TypeAAAA, k.Type())
}

// FuzzRead: whatever is plain, the DNS library reads, and reads the same; and it is one message from its first byte to its last.
func FuzzRead(f *testing.F) {
	for _, change := range []func(m *dns.Msg){nil, opt(1232, false), opt(4096, true), func(m *dns.Msg) { m.Question[0].Name = "." },
		func(m *dns.Msg) { m.Question[0].Name = strings.Repeat("a", 63) + "." + strings.Repeat("b.", 90) }} {
		b := packed(f, change)
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(bytes.Clone(b), 0))
	}
	f.Add(append(make([]byte, 12, 20), 0xc0, 12, 0, 1, 0, 1))
	f.Fuzz(func(t *testing.T, m []byte) {
		q := new(Query)
		if !q.Read(m) || len(q.OPT.Options) > 0 {
			return
		}
		var want dns.Msg
		if err := want.Unpack(m); err != nil {
			t.Fatalf("plain, and the library says: %v", err)
		}
		head := dns.Header{Id: want.Id, Bits: binary.BigEndian.Uint16(m[2:]), Qdcount: 1, Arcount: binary.BigEndian.Uint16(m[10:])}
		if dns.DefaultMsgAcceptFunc(head) != dns.MsgAccept || want.Opcode != dns.OpcodeQuery || len(want.Question) != 1 || len(want.Answer)+len(want.Ns) != 0 {
			t.Fatal("the library does not take it for a question")
		}
		o := want.IsEdns0()
		if (o != nil) != q.OPT.Present || len(want.Extra) > 1 || len(want.Extra) == 1 && o == nil {
			t.Fatalf("EDNS %t, the library has %v", q.OPT.Present, want.Extra)
		}
		if o != nil && (o.UDPSize() != q.OPT.Size || o.Do() != q.OPT.DO() || o.Version() != 0 || len(o.Option) != 0) {
			t.Fatalf("OPT %+v, the library's %v", q, o)
		}
		if q.RD != want.RecursionDesired || q.CD != want.CheckingDisabled || q.AD != (want.AuthenticatedData || q.OPT.DO()) || q.ID != want.Id ||
			q.Type != want.Question[0].Qtype || want.Question[0].Qclass != dns.ClassINET || want.Len() != len(m) {
			t.Fatalf("read %+v, the library %v", q, want.String())
		}
		name, err := Name(want.Question[0].Name)
		if err != nil || !bytes.Equal(name, q.Name()) {
			t.Fatalf("name %q, the library %q, %v", q.Name(), name, err)
		}
		if b, err := want.Pack(); err != nil || o == nil && !bytes.Equal(b, m) {
			t.Fatalf("packed again %x, %v", b, err)
		}
	})
}
