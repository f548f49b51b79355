package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
)

// known are the answers that changed frames meet, by the query's name, type and class in lower case.
func known(t testing.TB, l *Level) map[string]Answer {
	t.Helper()
	out := map[string]Answer{}
	add := func(name string, qtype uint16, records ...string) {
		a := answerOf(t, name, qtype, nil, records...)
		a.FixedTTL = 7
		a.Expires, a.Until = Now()+24*time.Hour, Now()+24*time.Hour
		put(t, l, a)
		q := a.Key.Question()
		out[string(q)] = a
	}
	add("a.b.", dns.TypeA, "a.b. 30 IN A 10.96.0.1")
	add("ab.cd.", dns.TypeAAAA, "ab.cd. 30 IN AAAA fd00::1")
	add(".", dns.TypeNS, ". 30 IN NS a.b.")
	add("c.d.", dns.TypeA, many("c.d. 30 IN A 192.0.2.", 32)...) // 524 bytes
	add("kubernetes.default.svc.cluster.local.", dns.TypeHTTPS, "local. 30 IN SOA ns.local. root.local. 1 2 3 4 5")
	return out
}

// expected returns the message with which the program should answer a frame, or nil if the frame should go on. It is independent of the
// program's implementation.
func expected(frame []byte, answers map[string]Answer) []byte {
	if len(frame) < 14 || frame[0]&1 != 0 {
		return nil
	}
	var from, to, udp []byte
	switch ip := frame[14:]; binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if len(ip) < 28 || ip[0] != 0x45 || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || ip[6]&^0xc0 != 0 || ip[7] != 0 || ip[9] != 17 {
			return nil
		}
		from, to, udp = ip[12:16], ip[16:20], ip[20:]
	case 0x86dd:
		if len(ip) < 48 || ip[0]>>4 != 6 || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-40 || ip[6] != 17 {
			return nil
		}
		from, to, udp = ip[8:24], ip[24:40], ip[40:]
	default:
		return nil
	}
	server, _ := netip.AddrFromSlice(to)
	if server != server4 && server != server6 || udp[2] != 0 || udp[3] != 53 || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		return nil
	}
	pseudo := pseudoOf(from, to, len(udp))
	switch sum := binary.BigEndian.Uint16(udp[6:]); {
	case sum == 0 && server.Is6():
		return nil
	case sum != 0:
		if isPartial, isFull := sum == fold(pseudo), fold(append(bytes.Clone(pseudo), udp...)) == 0xffff; isPartial == isFull {
			return nil
		}
	}
	q := fastpath.Query{Wire: udp[8:]}
	if !q.Read(q.Wire) || len(q.OPT.Options) > 0 || !q.RD || q.CD || q.OPT.DO() {
		return nil
	}
	key := q.Key.Question()
	a, ok := answers[string(key)]
	if !ok {
		return nil
	}
	answer, most := replyWanted(q.Wire, a), 512
	if q.OPT.Present {
		most = max(most, int(q.OPT.Size))
	}
	if len(answer) > most {
		return nil
	}
	return answer
}

// fixSums corrects some lengths and checksums of a changed frame, so that most frames come far into the program.
func fixSums(frame []byte, how byte) {
	udp := 34
	if frame[12] == 0x86 {
		udp = 54
	}
	if len(frame) < udp+8 {
		return
	}
	if how&1 == 0 {
		if udp == 34 {
			binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
			resum(frame, 20)
		} else {
			binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
		}
		binary.BigEndian.PutUint16(frame[udp+4:], uint16(len(frame)-udp))
	}
	pseudo := pseudoOf(frame[26:30], frame[30:34], len(frame)-udp)
	if udp == 54 {
		pseudo = pseudoOf(frame[22:38], frame[38:54], len(frame)-udp)
	}
	switch how & 6 {
	case 0:
		binary.BigEndian.PutUint16(frame[udp+6:], fold(pseudo))
	case 2:
		binary.BigEndian.PutUint16(frame[udp+6:], 0)
		sum := ^fold(append(pseudo, frame[udp:]...))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(frame[udp+6:], sum)
	}
}

// tryFrame runs the program on a frame and compares.
func tryFrame(l *Level, answers map[string]Answer, frame []byte) error {
	action, out, err := runFrame(l, frame)
	if err != nil {
		return nil //nolint:nilerr // the kernel takes no such frame for a test run
	}
	want := expected(frame, answers)
	switch {
	case want == nil && action != unspec:
		return fmt.Errorf("answered: action %d, %x", int32(action), out)
	case want == nil:
		if !bytes.Equal(frame, out) {
			return fmt.Errorf("changed, and went on: %x", out)
		}
		return nil
	case action != redirect:
		return fmt.Errorf("not answered: action %d, want %x", int32(action), want)
	}
	got, err := replyOf(frame, out)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("answered with\n%x, want\n%x", got, want)
	}
	return nil
}
