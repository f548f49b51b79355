package workload

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func mustNew(t *testing.T, name string, seed uint64) *Workload {
	t.Helper()
	w, err := New(name, seed, true)
	testutil.Must(t, err)
	return w
}

func same(a, b *Workload) bool {
	return slices.Equal(a.Order, b.Order) && slices.EqualFunc(a.Questions, b.Questions, func(p, q Question) bool { return bytes.Equal(p.Wire, q.Wire) && bytes.Equal(p.First, q.First) })
}

// The same seed makes the same queries in the same order, another one another order.
func TestSeed(t *testing.T) {
	for _, name := range Names {
		a, b, c := mustNew(t, name, 1), mustNew(t, name, 1), mustNew(t, name, 2)
		if !same(a, b) {
			t.Errorf("%s: not the same twice", name)
		}
		if !OnlyNew(name) && name != "W10" && name != "W11" && same(a, c) { // these have one name each
			t.Errorf("%s: the seed changes nothing", name)
		}
	}
	_, err := New("W0", 1, false)
	testutil.WantError(t, err, "W1, W2", "an unknown workload")
}

// Each query is a message that reports what the workload means, and the upstream's answer is what the query wants.
func TestQuestions(t *testing.T) {
	for _, name := range Names {
		for _, q := range mustNew(t, name, 1).Questions {
			var m dns.Msg
			testutil.Must(t, m.Unpack(append([]byte{0x12, 0x67}, q.Wire...)))
			if len(m.Question) != 1 || !m.RecursionDesired || m.Question[0] != (dns.Question{Name: q.Name + ".", Qtype: q.Type, Qclass: dns.ClassINET}) {
				t.Fatalf("%s: %v", q.Name, &m)
			}
			if edns := name == "W4" || name == "W5"; edns != (m.IsEdns0() != nil) || edns && m.IsEdns0().UDPSize() != payload {
				t.Errorf("%s, %s: EDNS %v", name, q.Name, m.IsEdns0())
			}
			testutil.Equal(t, q.Name+": the type at the end of the question", q.Type, binary.BigEndian.Uint16(q.Wire[q.Length()-4:]))
			a := Answer(&m)
			if a == nil || a.Rcode != int(q.Rcode) || len(a.Answer) != int(q.Count) {
				t.Fatalf("%s: answered by %v, want %+v", q.Name, a, q)
			}
			if q.Count == 0 && (len(a.Ns) != 1 || !dns.IsSubDomain(a.Ns[0].Header().Name, strings.ToLower(q.Name)+".")) {
				t.Errorf("%s: negative without its zone's SOA: %v", q.Name, a)
			}
			if a.Len() > payload {
				t.Errorf("%s: an answer of %d bytes", q.Name, a.Len())
			}
		}
	}
}

// Shares are as the workloads' texts say.
func TestShares(t *testing.T) {
	share := func(name string, is func(Question) bool) float64 {
		w := mustNew(t, name, 1)
		n := 0
		for _, i := range w.Order {
			if is(w.Questions[i]) {
				n++
			}
		}
		return float64(n) / float64(len(w.Order))
	}
	negative := func(q Question) bool { return q.Rcode == nxDomain }
	foreign := func(q Question) bool { return strings.HasSuffix(q.Name, "."+outside) }
	for _, c := range []struct {
		what      string
		got       float64
		low, high float64
	}{
		{"W1 NXDOMAIN", share("W1", negative), 0, 0},
		{"W2 NXDOMAIN", share("W2", negative), 0.8, 0.8},
		{"W3 outside", share("W3", foreign), 0.47, 0.53},
		{"W3 the first name", share("W3", func(q Question) bool { return strings.HasPrefix(q.Name, "host-0.") }), 0.05, 0.09},
		{"W4 answers", share("W4", func(q Question) bool { return q.Count == 50 }), 1, 1},
		{"W6 as written", share("W6", func(q Question) bool { return q.Name == strings.ToLower(q.Name) }), 0, 0.01},
		{"W7 new", share("W7", func(q Question) bool { return q.Digits > 0 }), 0.008, 0.012},
		{"W9 NXDOMAIN", share("W9", negative), 0.8, 0.8},
		{"W10 NXDOMAIN", share("W10", negative), 0, 0},
		{"W11 NXDOMAIN", share("W11", negative), 1, 1},
		{"W12 outside", share("W12", foreign), 1, 1},
		{"W13 new names outside", share("W13", func(q Question) bool { return foreign(q) && q.Digits > 0 && q.Count == 1 }), 1, 1},
		{"W14 new names that do not exist", share("W14", func(q Question) bool { return negative(q) && q.Digits > 0 }), 1, 1},
	} {
		if c.got < c.low || c.got > c.high {
			t.Errorf("%s: a share of %.3f, want %.3f to %.3f", c.what, c.got, c.low, c.high)
		}
	}
	for _, name := range Names {
		if all := share(name, func(q Question) bool { return q.Digits > 0 }) == 1; all != OnlyNew(name) {
			t.Errorf("%s: only new names: %v, want %v", name, all, OnlyNew(name))
		}
	}
	full, err := New("W3", 1, false)
	testutil.Must(t, err)
	if n := len(full.Questions); n < 8_000 || n > 20_200 {
		t.Errorf("W3 in full has %d questions", n)
	}
}

func TestNumber(t *testing.T) {
	for name, want := range map[string]string{
		Miss: "new-001234567." + zone, "W13": "new-001234567." + outside, "W14": "missing-001234567." + zone,
	} {
		q := mustNew(t, name, 1).Questions[0]
		wire := append([]byte(nil), q.Wire...)
		q.Number(wire, 1_234_567)
		var m dns.Msg
		if err := m.Unpack(append([]byte{0, 0}, wire...)); err != nil || m.Question[0].Name != want+"." {
			t.Errorf("%s: %v: %v", name, err, m.Question)
		}
		if a := Answer(&m); a == nil || a.Rcode != int(q.Rcode) || len(a.Answer) != int(q.Count) {
			t.Errorf("%s: the numbered name's answer is %v, want that of %+v", name, a, q)
		}
	}
}

// Names of others are left to the server's own answers; unknown names of ours do not exist.
func TestAnswer(t *testing.T) {
	for name, want := range map[string]int{
		"w1-1." + zone + ".": dns.RcodeSuccess, "W1-1." + zone + ".": dns.RcodeSuccess, "w1-20." + zone + ".": dns.RcodeNameError,
		"w1-x." + zone + ".": dns.RcodeNameError, "w1--1." + zone + ".": dns.RcodeNameError,
		"host-3.outside.example.net.": dns.RcodeSuccess, "w1-1." + zone + ".internal.example.net.": dns.RcodeNameError,
	} {
		if a := Answer(new(dns.Msg).SetQuestion(name, dns.TypeA)); a == nil || a.Rcode != want {
			t.Errorf("%s: %v", name, a)
		}
	}
	for _, m := range []*dns.Msg{new(dns.Msg).SetQuestion(".", dns.TypeNS), new(dns.Msg).SetQuestion("example.org.", dns.TypeA), new(dns.Msg).SetQuestion("svc.cluster.local.", dns.TypeA), {}} {
		if a := Answer(m); a != nil {
			t.Errorf("%v: %v", m.Question, a)
		}
	}
	if w := Memory(300); len(w.Questions) != 300 || w.Questions[299].Count != 1 {
		t.Errorf("%d names to fill a cache with", len(w.Questions))
	}
}
