package bpf

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

const shapeName = "kubernetes.default.svc.cluster.local."

// resum makes a changed IPv4 header's checksum right again.
func resum(frame []byte, header int) []byte {
	binary.BigEndian.PutUint16(frame[24:], 0)
	binary.BigEndian.PutUint16(frame[24:], ^fold(frame[14:14+header]))
	return frame
}

// set changes one byte of a frame.
func set(at int, to byte) func([]byte) []byte {
	return func(f []byte) []byte {
		f[at] = to
		return f
	}
}

// TestShapes: packets of all shapes with a query whose answer is known. The program passes on unchanged those that are not plain.
func TestShapes(t *testing.T) {
	l := open(t, 8)
	put(t, l, answerOf(t, shapeName, dns.TypeA, nil, shapeName+" 30 IN A 10.96.0.1"))
	question := ask(t, shapeName, dns.TypeA, nil)
	const ip4, udp4, ip6, udp6 = 14, 34, 14, 54
	for _, c := range []struct {
		name   string
		v6     bool
		change func([]byte) []byte
		passed Reason // 0: it is not for us, and not counted
	}{
		{"cut in UDP's header", false, func(f []byte) []byte { return f[:udp4+4] }, 0},
		{"cut in the message", false, func(f []byte) []byte { return f[:len(f)-1] }, Packet},
		{"padded", false, func(f []byte) []byte { return append(f, 0, 0, 0, 0) }, Packet},
		{"IPv4 longer than UDP", false, func(f []byte) []byte {
			f = append(f, 0, 0)
			binary.BigEndian.PutUint16(f[ip4+2:], uint16(len(f)-14))
			return resum(f, 20)
		}, Packet},
		{"UDP longer than the packet", false, set(udp4+5, 200), Packet},
		{"IPv4's options", false, func(f []byte) []byte {
			f = slices.Insert(f, udp4, 1, 1, 1, 1)
			f[ip4] = 0x46
			binary.BigEndian.PutUint16(f[ip4+2:], uint16(len(f)-14))
			return resum(f, 24)
		}, Packet},
		{"IPv4's version 5", false, func(f []byte) []byte { f[ip4] = 0x55; return resum(f, 20) }, Packet},
		{"the first fragment", false, func(f []byte) []byte { f[ip4+6] = 0x20; return resum(f, 20) }, Packet},
		{"a later fragment", false, func(f []byte) []byte { f[ip4+6], f[ip4+7] = 0, 9; return resum(f, 20) }, Packet},
		{"TCP", false, func(f []byte) []byte { f[ip4+9] = 6; return resum(f, 20) }, 0},
		{"GRE", false, func(f []byte) []byte { f[ip4+9] = 47; return resum(f, 20) }, 0},
		{"another port", false, set(udp4+3, 54), 0},
		{"another address", false, func(f []byte) []byte { f[ip4+19]++; return resum(f, 20) }, 0},
		{"ARP", false, set(13, 6), 0},
		{"VLAN", false, func(f []byte) []byte { return slices.Insert(f, 12, 0x81, 0, 0, 5) }, 0},
		{"VLAN in VLAN", false, func(f []byte) []byte { return slices.Insert(f, 12, 0x88, 0xa8, 0, 5, 0x81, 0, 0, 5) }, 0},
		{"broadcast", false, func(f []byte) []byte { copy(f, bytes.Repeat([]byte{0xff}, 6)); return f }, Packet},
		{"multicast", false, set(0, 1), Packet},
		{"a wrong checksum", false, func(f []byte) []byte { f[udp4+6] ^= 0x40; return f }, Packet},
		{"a checksum of two meanings", false, ambiguous, Packet},
		{"IPv6 cut in the message", true, func(f []byte) []byte { return f[:len(f)-1] }, Packet},
		{"IPv6 padded", true, func(f []byte) []byte { return append(f, 0) }, Packet},
		{"IPv6's hop-by-hop options", true, func(f []byte) []byte {
			f = slices.Insert(f, udp6, 17, 0, 1, 4, 0, 0, 0, 0)
			f[ip6+6] = 0
			binary.BigEndian.PutUint16(f[ip6+4:], uint16(len(f)-54))
			return f
		}, 0},
		{"IPv6's fragment header", true, func(f []byte) []byte {
			f = slices.Insert(f, udp6, 17, 0, 0, 0, 1, 2, 3, 4)
			f[ip6+6] = 44
			binary.BigEndian.PutUint16(f[ip6+4:], uint16(len(f)-54))
			return f
		}, 0},
		{"IPv6's version 4", true, set(ip6, 0x40), Packet},
		{"IPv6 without a checksum", true, func(f []byte) []byte { f[udp6+6], f[udp6+7] = 0, 0; return f }, Packet},
		{"IPv6 with a wrong checksum", true, func(f []byte) []byte { f[udp6+7] ^= 1; return f }, Packet},
		{"IPv6's another address", true, set(ip6+39, 1), 0},
		{"IPv6 to an IPv4 address", true, func(f []byte) []byte {
			v4 := server4.As16()
			copy(f[ip6+24:], v4[:])
			fixSums(f, 2)
			return f
		}, 0},
		{"IPv6's payload is a jumbogram's", true, func(f []byte) []byte { f[ip6+4], f[ip6+5] = 0, 0; return f }, Packet},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := passed(t, l)
			wantPassed(t, l, c.change(packet(c.v6, full, question)), nil)
			after := passed(t, l)
			if c.passed != 0 {
				before[c.passed]++
			}
			testutil.Equal(t, "passed", before, after)
		})
	}
	t.Run("GSO", func(t *testing.T) {
		wantPassed(t, l, packet(false, partial, question), &skb{GSOSegs: 2, GSOSize: 20})
	})
	t.Run("the plain one", func(t *testing.T) {
		for _, v6 := range []bool{false, true} {
			for _, sum := range []checksum{partial, full} {
				if action, _ := run(t, l, packet(v6, sum, question), nil); action != redirect {
					t.Errorf("action %d", int32(action))
				}
			}
		}
	})
}

// TestWrongHeaderChecksum: a query with a wrong IPv4 header checksum gets an answer whose checksum is wrong too, which the pod drops.
func TestWrongHeaderChecksum(t *testing.T) {
	l := open(t, 8)
	put(t, l, answerOf(t, shapeName, dns.TypeA, nil, shapeName+" 30 IN A 10.96.0.1"))
	frame := packet(false, full, ask(t, shapeName, dns.TypeA, nil))
	frame[24] ^= 0x10
	if action, out := run(t, l, frame, nil); action == redirect && fold(out[14:34]) == 0xffff {
		t.Error("the answer's header is right")
	}
}

// ambiguous changes the source port until the whole checksum is the pseudo-header's sum as well.
func ambiguous(frame []byte) []byte {
	udp := frame[34:]
	pseudo := pseudoOf(frame[26:30], frame[30:34], len(udp))
	for port := range 1 << 16 {
		binary.BigEndian.PutUint16(udp, uint16(port))
		binary.BigEndian.PutUint16(udp[6:], fold(pseudo))
		if fold(append(slices.Clone(pseudo), udp...)) == 0xffff {
			return frame
		}
	}
	return nil
}

// TestQuestions: queries of all kinds to a served address. The program passes on those that the fast path would not answer from bytes, or
// would answer differently.
func TestQuestions(t *testing.T) {
	l := open(t, 8)
	put(t, l, answerOf(t, shapeName, dns.TypeA, nil, shapeName+" 30 IN A 10.96.0.1"))
	long := "a23456789.b23456789.c23456789.d23456789.e23456789.f23456789.g23456789.h23456789.i23456789.j23456789.k23456789.l23456789.m23456."
	put(t, l, answerOf(t, long, dns.TypeA, nil, long+" 30 IN A 10.96.0.1"))
	a := answerOf(t, "x"+long, dns.TypeA, nil, "x"+long+" 30 IN A 10.96.0.1")
	if err := l.Put(&a); err == nil {
		t.Error("a name of 129 bytes was taken")
	}
	plain := func() []byte { return ask(t, shapeName, dns.TypeA, nil) }
	opt := func() []byte { return ask(t, shapeName, dns.TypeA, withOPT(1232)) }
	for _, c := range []struct {
		name string
		b    []byte
		want Reason // 0: it is answered
	}{
		{"plain", plain(), 0},
		{"with OPT", opt(), 0},
		{"AD", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.AuthenticatedData = true }), 0},
		{"an unknown flag of the OPT", set(len(opt())-3, 0x00)(set(len(opt())-4, 0x40)(opt())), 0},
		{"the longest name", ask(t, long, dns.TypeA, withOPT(1232)), 0},
		{"a longer name", ask(t, "x"+long, dns.TypeA, nil), Question},
		{"a longer name with OPT", ask(t, "x"+long, dns.TypeA, withOPT(1232)), Question},
		{"not recursive", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false }), Question},
		{"CD", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled = true }), Question},
		{"Z", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Zero = true }), Question},
		{"RA", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.RecursionAvailable = true }), Question},
		{"TC", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Truncated = true }), Question},
		{"an answer", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Response = true }), Question},
		{"AA", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Authoritative = true }), Question},
		{"a code", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Rcode = 3 }), Question},
		{"NOTIFY", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }), Question},
		{"DO", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) }), Question},
		{"a cookie", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"})
		}), Question},
		{"EDNS version 1", ask(t, shapeName, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }), Question},
		{"an extended code", set(len(opt())-6, 1)(opt()), Question},
		{"an OPT of a name", set(len(opt())-11, 1)(opt()), Question},
		{"an A in place of the OPT", set(len(opt())-9, 1)(opt()), Question},
		{"options announced", set(len(opt())-1, 1)(opt()), Question},
		{"an OPT announced, and none", set(11, 1)(plain()), Question},
		{"an OPT, and none announced", set(11, 0)(opt()), Unknown},
		{"two records announced", set(11, 2)(opt()), Question},
		{"256 records announced", set(10, 1)(opt()), Question},
		{"no question", set(5, 0)(plain()), Question},
		{"two questions", set(5, 2)(plain()), Question},
		{"an answer announced", set(7, 1)(plain()), Question},
		{"an authority announced", set(9, 1)(plain()), Question},
		{"a byte behind it", append(plain(), 0), Unknown},
		{"a byte less", plain()[:len(plain())-1], Unknown},
		{"a header alone", plain()[:12], Question},
		{"nothing", nil, Question},
		{"class CH", set(len(plain())-1, 3)(plain()), Unknown},
		{"another type", set(len(plain())-3, 28)(plain()), Unknown},
		{"another name", ask(t, "kubernetes.default.svc.cluster.locam.", dns.TypeA, nil), Unknown},
		{"a dot in a label", set(12+11, '.')(plain()), Unknown},
		{"a pointer", set(12, 0xc0)(plain()), Unknown},
		{"a letter with its high bit", set(13, 'k'|0x80)(plain()), Unknown},
		{"@ for `", set(13, '@')(plain()), Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, v6 := range []bool{false, true} {
				for _, sum := range []checksum{partial, full} {
					frame := packet(v6, sum, c.b)
					before := passed(t, l)[max(c.want, Packet)]
					if c.want != 0 {
						wantPassed(t, l, frame, nil)
						if after := passed(t, l)[c.want]; after != before+1 {
							t.Errorf("v6 %t: passed %d times for being %v", v6, after-before, c.want)
						}
					} else if action, out := run(t, l, frame, nil); action != redirect {
						t.Errorf("action %d", int32(action))
					} else if _, err := replyOf(frame, out); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestTypeOfLetters: a type whose number is that of a capital letter is not the type of the small one (HTTPS is 65, 97 is another).
func TestTypeOfLetters(t *testing.T) {
	l := open(t, 8)
	put(t, l, answerOf(t, "a.example.", 65, nil, "example. 30 IN SOA ns.example. root.example. 1 2 3 4 5"))
	if action, _ := run(t, l, packet(false, partial, ask(t, "a.example.", 65, nil)), nil); action != redirect {
		t.Error("type 65 was not answered")
	}
	wantPassed(t, l, packet(false, partial, ask(t, "a.example.", 97, nil)), nil)
}

// TestSizes: a query goes on if its answer is too large for the client, exact to the byte.
func TestSizes(t *testing.T) {
	l := open(t, 64)
	const name = "sizes.example."
	for size := 500; size <= 1300; size += 1 + size/516*97 {
		text := make([]byte, 0, size)
		records := []string{}
		// One record for the bulk and one that fills up to the size.
		m := func(n int) Answer {
			text = bytes.Repeat([]byte("x"), n%200)
			records = records[:0]
			for range n / 200 {
				records = append(records, name+` 30 IN TXT "`+string(bytes.Repeat([]byte("y"), 200))+`"`)
			}
			return answerOf(t, name, dns.TypeTXT, nil, append(records, name+` 30 IN TXT "`+string(text)+`"`)...)
		}
		n := 0
		a := m(n)
		for a.Entry.Size() < size {
			n += max(1, (size-a.Entry.Size())/2)
			a = m(n)
		}
		exact := a.Entry.Size()
		err := l.Put(&a)
		if fits := exact-12-len(ask(t, name, dns.TypeTXT, nil))+12 <= maxTail; fits != (err == nil) {
			t.Fatalf("%d bytes: %v", exact, err)
		}
		if err != nil {
			continue
		}
		for _, c := range []struct {
			opt   bool
			size  int
			bound int
		}{{false, 0, 0}, {true, 0, 0}, {true, 511, 0}, {true, 512, 0}, {true, exact + 10, 0}, {true, exact + 11, 0}, {true, 4096, 0}, {true, 65535, exact + 10}, {true, 65535, exact + 11}, {true, 1232, 512}} {
			a.Size = uint16(c.bound)
			put(t, l, a)
			question, most, want := ask(t, name, dns.TypeTXT, nil), 512, exact
			if c.opt {
				question, want = ask(t, name, dns.TypeTXT, withOPT(uint16(c.size))), exact+11
				if most = c.size; c.bound > 0 {
					most = min(most, c.bound)
				}
				most = max(most, 512)
			}
			frame := packet(false, full, question)
			if want <= most {
				wantAnswered(t, l, frame, a)
			} else {
				wantPassed(t, l, frame, nil)
			}
		}
	}
}

// TestTimes: an answer is served, with the seconds that are left, until it expires or the agent wants to see the next query. A new
// generation ends all answers.
func TestTimes(t *testing.T) {
	l := open(t, 8)
	a := answerOf(t, shapeName, dns.TypeA, nil, shapeName+" 30 IN A 10.96.0.1", shapeName+" 17 IN A 10.96.0.2")
	frame := packet(false, partial, ask(t, shapeName, dns.TypeA, nil))
	ttls := func() []uint32 {
		t.Helper()
		_, out := run(t, l, frame, nil)
		m := new(dns.Msg)
		testutil.Must(t, m.Unpack(payloadOf(out)))
		var all []uint32
		for _, r := range m.Answer {
			all = append(all, r.Header().Ttl)
		}
		return all
	}
	a.FixedTTL = 0
	hour := Now() + time.Hour
	for _, c := range []struct {
		left time.Duration
		want uint32
	}{{900 * time.Millisecond, 1}, {1900 * time.Millisecond, 2}, {59*time.Second + 500*time.Millisecond, 60}, {24*time.Hour - time.Second/2, 86400}} {
		a.Expires, a.Until = Now()+c.left, hour*1000
		put(t, l, a)
		if got := ttls(); !slices.Equal(got, []uint32{c.want, c.want}) {
			t.Errorf("with %v left the TTLs are %d", c.left, got)
		}
	}
	a.FixedTTL = 77
	put(t, l, a)
	testutil.Equal(t, "fixed TTLs", []uint32{77, 77}, ttls())
	a.FixedTTL = 0
	a.Expires = Now()
	put(t, l, a)
	wantPassed(t, l, frame, nil)
	a.Expires, a.Until = hour, Now()
	put(t, l, a)
	wantPassed(t, l, frame, nil)
	testutil.Equal(t, "passed as old", 2, passed(t, l)[Old])
	a.Until = hour
	put(t, l, a)
	wantAction := func(want uint32) {
		t.Helper()
		action, _ := run(t, l, frame, nil)
		testutil.Equal(t, "action", want, action)
	}
	wantAction(redirect)
	testutil.Must(t, l.Invalidate())
	wantAction(unspec)
	testutil.Equal(t, "answers after Invalidate", 0, len(l.byPlace))
	put(t, l, a)
	wantAction(redirect)
	testutil.Must(t, l.Remove(a.Key))
	wantAction(unspec)
}

// TestRotation: of several addresses each is the first in its turn, and the others follow in their order.
func TestRotation(t *testing.T) {
	l := open(t, 8)
	for _, c := range []struct {
		name    string
		qtype   uint16
		records []string
		rotated int
	}{
		{"two.example.", dns.TypeA, []string{"two.example. 30 IN A 192.0.2.1", "two.example. 30 IN A 192.0.2.2"}, 2},
		{"three.example.", dns.TypeAAAA, []string{"three.example. 30 IN AAAA 2001:db8::1", "three.example. 30 IN AAAA 2001:db8::2", "three.example. 30 IN AAAA 2001:db8::3"}, 3},
		{"alias.example.", dns.TypeA, []string{"alias.example. 30 IN CNAME other.example.", "other.example. 30 IN A 192.0.2.1", "other.example. 30 IN A 192.0.2.2"}, 2},
		{"many.example.", dns.TypeA, many("many.example. 30 IN A 192.0.2.", 70), 70},
		{"many6.example.", dns.TypeAAAA, many("many6.example. 30 IN AAAA 2001:db8::", 40), 40},
		{"one.example.", dns.TypeA, []string{"one.example. 30 IN A 192.0.2.1"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := answerOf(t, c.name, c.qtype, nil, c.records...)
			a.Rotate = true
			put(t, l, a)
			frame := packet(true, full, ask(t, c.name, c.qtype, withOPT(4096)))
			seen := map[string]int{}
			for range 2 * c.rotated {
				action, out := run(t, l, frame, nil)
				if action != redirect {
					t.Fatalf("action %d", int32(action))
				}
				got, err := replyOf(frame, out)
				testutil.Must(t, err)
				m := new(dns.Msg)
				testutil.Must(t, m.Unpack(got))
				var order []string
				for _, r := range m.Answer {
					r.Header().Ttl = 30
					order = append(order, r.String())
				}
				// Back to the first order, it is the whole.
				head := len(order) - c.rotated
				want := answerRecords(t, c.records)
				at := slices.Index(order, want[head])
				if back := slices.Concat(order[:head], order[at:], order[head:at]); !slices.Equal(back, want) {
					t.Fatalf("%q", order)
				}
				seen[order[head]]++
			}
			testutil.Equal(t, "addresses that were the first", c.rotated, len(seen))
			for first, n := range seen {
				if n != 2 {
					t.Errorf("%s was %d times the first", first, n)
				}
			}
		})
	}
}

func many(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, prefix+string(rune('1'+i/10))+string(rune('0'+i%10)))
	}
	return out
}

func answerRecords(t testing.TB, records []string) (out []string) {
	t.Helper()
	for _, r := range records {
		rr, err := dns.NewRR(r)
		testutil.Must(t, err)
		rr.Header().Ttl = 30
		out = append(out, rr.String())
	}
	return out
}
