package answers

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/pkg/testutil"
)

// answer packs an answer to name with the records below it.
func answer(t testing.TB, name string, qtype uint16, records ...string) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id, m.Response, m.RecursionAvailable, m.Compress = 4711, true, true, true
	for _, r := range records {
		rr, err := dns.NewRR(r)
		testutil.Must(t, err)
		m.Answer = append(m.Answer, rr)
	}
	b, err := m.Pack()
	testutil.Must(t, err)
	return b
}

func key(t testing.TB, name string, qtype uint16) (*msg.Key, []byte) {
	t.Helper()
	q, err := msg.AppendQuestion(nil, name, qtype, dns.ClassINET)
	if err != nil {
		t.Fatalf("%q: %v", name, err)
	}
	k := new(msg.Key)
	k.Set(q, false, false)
	return k, q
}

func entry(t testing.TB, name string, ttl uint32) (*msg.Key, *Entry) {
	t.Helper()
	k, _ := key(t, name, dns.TypeA)
	e, err := NewEntry(k, Success, answer(t, name, dns.TypeA, name+" 60 IN A 192.0.2.1"), ttl)
	testutil.Must(t, err)
	return k, e
}

// put stores an entry in a space.
func put(t testing.TB, sp *Space, name string, ttl uint32) (*msg.Key, *Entry) {
	t.Helper()
	k, e := entry(t, name, ttl)
	sp.Put(k, e)
	return k, e
}

// filler fills an answer to www.example.org up to 1<<14 + 12, so that a pointer to the name, at 12, has the last 14 bits of the next
// record's offset.
var filler = "www.example.org. 60 IN TXT" + strings.Repeat(` "`+strings.Repeat("x", 255)+`"`, 63) + ` "` + strings.Repeat("x", 222) + `"`

// many are n records of a format with two numbers.
func many(n int, format string) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(format, i/200, i%200))
	}
	return out
}

// TestReplyRotates: only consecutive addresses of one name change places, whatever their number. Each is the first one in turn, and nothing
// else in the message changes.
func TestReplyRotates(t *testing.T) {
	const sig = "www.example.org. 60 IN RRSIG A 13 3 60 20380101000000 19991231000000 1 example.org. c2ln"
	chain := []string{"www.example.org. 60 IN CNAME a.example.org.", "a.example.org. 60 IN CNAME host.elsewhere.example."}
	for name, tc := range map[string]struct {
		records []string
		turns   int
	}{
		"none":                  {nil, 1},
		"one":                   {[]string{"www.example.org. 60 IN A 192.0.2.1"}, 1},
		"two":                   {many(2, "www.example.org. 60 IN A 192.0.%d.%d"), 2},
		"in another case":       {[]string{"WWW.example.org. 60 IN A 192.0.2.1", "WWW.example.org. 60 IN A 192.0.2.2", "WWW.example.org. 60 IN A 192.0.2.3"}, 3},
		"a headless Service":    {many(100, "www.example.org. 60 IN A 10.244.%d.%d"), 100},
		"IPv6":                  {many(7, "www.example.org. 60 IN AAAA 2001:db8::%d:%d"), 7},
		"as long as it may be":  {many(3900, "www.example.org. 60 IN A 10.1.%d.%d"), 3900},
		"behind aliases":        {append(chain, many(5, "host.elsewhere.example. 60 IN A 192.0.%d.%d")...), 5},
		"before a signature":    {append(many(3, "www.example.org. 60 IN A 192.0.%d.%d"), sig), 3},
		"behind a signature":    {append([]string{sig}, many(3, "www.example.org. 60 IN A 192.0.%d.%d")...), 3},
		"of two names":          {[]string{"www.example.org. 60 IN A 192.0.2.1", "web.example.org. 60 IN A 192.0.2.2"}, 1},
		"of two names, one set": {append([]string{"www.example.org. 60 IN A 192.0.2.9"}, many(2, "web.example.org. 60 IN A 192.0.%d.%d")...), 2},
		"behind 16 KiB":         {[]string{filler, "web.example.org. 60 IN A 192.0.2.1", "www.example.org. 60 IN A 192.0.2.2"}, 1},
		"of two types":          {append(many(3, "www.example.org. 60 IN A 192.0.%d.%d"), many(2, "www.example.org. 60 IN AAAA 2001:db8::%d:%d")...), 3},
		"no addresses":          {many(3, "www.example.org. 60 IN TXT \"%d %d\""), 1},
		"apart":                 {[]string{"www.example.org. 60 IN A 192.0.2.1", sig, "www.example.org. 60 IN A 192.0.2.2"}, 1},
	} {
		k, asked := key(t, "www.example.org.", dns.TypeA)
		e, err := NewEntry(k, Success, answer(t, "www.example.org.", dns.TypeA, tc.records...), 60)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		shape := func(b []byte) (first string, all []string) {
			m := new(dns.Msg)
			if err := m.Unpack(b); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, rr := range m.Answer {
				all = append(all, rr.String())
				if h := rr.Header().Rrtype; first == "" && (h == dns.TypeA || h == dns.TypeAAAA) && (name != "of two names, one set" || strings.HasPrefix(rr.Header().Name, "web.")) {
					first = rr.String()
				}
			}
			return first, all
		}
		_, want := shape(e.AppendReply(nil, &Reply{Question: asked, TTL: 60}))
		sorted := slices.Sorted(slices.Values(want))
		seen := map[string]bool{}
		queries := tc.turns + 1
		if tc.turns > 100 {
			queries = 4
		}
		for turn := range queries {
			first, got := shape(e.AppendReply(nil, &Reply{Question: asked, TTL: 60, Rotate: true}))
			if seen[first] != (turn > 0 && (turn == tc.turns)) {
				t.Errorf("%s: %q in front in turn %d", name, first, turn)
			}
			seen[first] = true
			for i := range got { // other records stay
				if got[i] != want[i] && !strings.Contains(want[i], "\tA\t") && !strings.Contains(want[i], "\tAAAA\t") {
					t.Errorf("%s: %q in the place of %q", name, got[i], want[i])
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, sorted) {
				t.Errorf("%s: %q, want %q", name, got, sorted)
			}
		}
		testutil.Equal(t, name+": addresses in front", min(tc.turns, queries), len(seen))
	}
}

func TestReply(t *testing.T) {
	k, _ := key(t, "www.example.org.", dns.TypeA)
	packed := new(dns.Msg)
	testutil.Must(t, packed.Unpack(answer(t, "www.example.org.", dns.TypeA, "www.example.org. 300 IN CNAME web.example.org.", "web.example.org. 60 IN A 192.0.2.1")))
	packed.Authoritative, packed.AuthenticatedData, packed.CheckingDisabled, packed.Zero, packed.Compress = true, true, true, true, true
	msg, err := packed.Pack()
	testutil.Must(t, err)
	e, err := NewEntry(k, Success, msg, 60)
	testutil.Must(t, err)
	_, asked := key(t, "wWw.ExaMple.ORG.", dns.TypeA)
	for _, tc := range []struct {
		reply Reply
		want  string
	}{
		{Reply{ID: 1, Question: asked, TTL: 7}, "1 aa ra"},
		{Reply{ID: 65535, Question: asked, TTL: 7, RD: true, CD: true, AD: true}, "65535 aa rd ra ad cd"},
	} {
		m := new(dns.Msg)
		testutil.Must(t, m.Unpack(e.AppendReply([]byte{}, &tc.reply)))
		got := fmt.Sprint(m.Id)
		for _, f := range []struct {
			set  bool
			name string
		}{{m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionDesired, "rd"}, {m.RecursionAvailable, "ra"}, {m.Zero, "z"}, {m.AuthenticatedData, "ad"}, {m.CheckingDisabled, "cd"}} {
			if f.set {
				got += " " + f.name
			}
		}
		testutil.Equal(t, "ID and flags", tc.want, got)
		var records []string
		for _, rr := range m.Answer {
			records = append(records, strings.ReplaceAll(rr.String(), "\t", " "))
		}
		// The suffix of web.example.org points into the query, so it has its case too.
		want := []string{"wWw.ExaMple.ORG. 7 IN CNAME web.ExaMple.ORG.", "web.ExaMple.ORG. 7 IN A 192.0.2.1"}
		testutil.Equal(t, "records", want, records)
		testutil.Equal(t, "the question's name", "wWw.ExaMple.ORG.", m.Question[0].Name)
	}
}

func TestNotKept(t *testing.T) {
	k, _ := key(t, "a.example.", dns.TypeA)
	good := answer(t, "a.example.", dns.TypeA, "a.example. 60 IN A 192.0.2.1")
	change := func(f func(b []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		return b
	}
	opt := new(dns.Msg)
	testutil.Must(t, opt.Unpack(good))
	opt.SetEdns0(1232, false)
	withOPT, err := opt.Pack()
	testutil.Must(t, err)
	for name, msg := range map[string][]byte{
		"nothing":               nil,
		"half a header":         good[:11],
		"a question":            change(func(b []byte) { b[2] &^= msg.BitQR }),
		"truncated":             change(func(b []byte) { b[2] |= msg.BitTC }),
		"another opcode":        change(func(b []byte) { b[2] |= 4 << 3 }),
		"no question":           change(func(b []byte) { b[5] = 0 }),
		"two questions":         change(func(b []byte) { b[5] = 2 }),
		"more records than are": change(func(b []byte) { b[7]++ }),
		"fewer records":         change(func(b []byte) { b[7]-- }),
		"cut":                   good[:len(good)-1],
		"something behind":      append(bytes.Clone(good), 0),
		"a pointer as question": change(func(b []byte) { b[12] = 0xc0 }),
		"another name":          answer(t, "b.example.", dns.TypeA, "b.example. 60 IN A 192.0.2.1"),
		"another type":          answer(t, "a.example.", dns.TypeAAAA),
		"OPT":                   withOPT,
	} {
		if _, err := NewEntry(k, Success, msg, 60); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	_, err = NewEntry(k, Success, good, 60)
	testutil.Check(t, err)
	k, _ = key(t, "a.example.", 65280)
	_, err = NewEntry(k, Success, answer(t, "a.example.", 65280, `a.example. 60 IN TYPE65280 \# 0`), 60)
	testutil.Check(t, err, "a record without data")
}
