package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
)

// Addresses for documentation (RFC 5737, RFC 3849), so no real server or client has them.
var (
	testServer4, testClient4 = netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("192.0.2.1")
	testServer6, testClient6 = netip.MustParseAddr("2001:db8::53"), netip.MustParseAddr("2001:db8::1")
)

const (
	dnsPort = 53 // RFC 1035, section 4.2.1

	testTime   = 30 * time.Second // as entries.MaxTime
	testSeries = SeriesMost       // for the hits of Test, so that no client's series counts them
)

// redirect is what the program returns after it made the packet an answer: TC_ACT_REDIRECT of linux/pkt_cls.h.
const redirect = 7

// Try runs the program on a DNS query by UDP to a served address, and returns its answer. ok is false if the program passes the query on.
// The program counts the query like a client's.
func (l *Level) Try(server netip.Addr, question []byte) (answer []byte, ok bool, err error) {
	frame := frameOf(server, question)
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+maxTail+64)}
	action, err := l.objects.NeardnsHits.Run(&o)
	if err != nil {
		return nil, false, fmt.Errorf("run the program: %w", err)
	}
	if action != redirect {
		if !bytes.Equal(o.DataOut, frame) {
			return nil, false, errors.New("the program changed a packet that it did not answer")
		}
		return nil, false, nil
	}
	return o.DataOut[len(frame)-len(question):], true, nil
}

// frameOf returns an Ethernet frame with the query. Its UDP checksum covers the pseudo-header only, as in a packet of a local sender with
// checksum offload.
func frameOf(server netip.Addr, question []byte) []byte {
	const ethernet, udpSize = 14, 8
	client, length := testClient4, udpSize+len(question)
	b := make([]byte, ethernet, ethernet+40+length)
	if server.Is4() {
		b[12] = 8
		b = append(b, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+length))
		b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0)
		b = append(append(b, client.AsSlice()...), server.AsSlice()...)
		binary.BigEndian.PutUint16(b[ethernet+10:], ^onesSum(b[ethernet:]))
	} else {
		client = testClient6
		b[12], b[13] = 0x86, 0xdd
		b = binary.BigEndian.AppendUint16(append(b, 0x60, 0, 0, 0), uint16(length))
		b = append(b, 17, 64)
		b = append(append(b, client.AsSlice()...), server.AsSlice()...)
	}
	pseudo := append(append(client.AsSlice(), server.AsSlice()...), 0, 17, byte(length>>8), byte(length))
	b = append(b, 0x9c, 0x40, 0, 53)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = binary.BigEndian.AppendUint16(b, onesSum(pseudo))
	return append(b, question...)
}

// onesSum is the ones' complement sum (RFC 1071) of an even number of bytes.
func onesSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 1<<16-1 {
		sum = sum&(1<<16-1) + sum>>16
	}
	return uint16(sum)
}

// Test runs the program on queries for an answer of its own, which it removes at the end. While the answer is expired, the program must
// pass the query on. While it is valid, the program must answer as the fast path does, over IPv4 and IPv6, with and without EDNS. If Test
// returns an error, the kernel must not serve hits.
func (l *Level) Test() (err error) {
	const name, ttl = "self-test.neardns.invalid.", 30
	bare, err := msg.AppendQuestion(nil, name, 1, 1)
	if err != nil {
		return err
	}
	key := new(msg.Key)
	key.Set(bare, false, false)
	message := append([]byte{0, 0, 0x80, 0x80, 0, 1, 0, 2, 0, 0, 0, 0}, bare...)
	for i := range byte(2) {
		message = append(message, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, ttl, 0, 4, 192, 0, 2, i)
	}
	entry, err := answers.NewEntry(key, answers.Success, message, ttl)
	if err != nil {
		return err
	}

	defer func() {
		err = errors.Join(err, l.Remove(key))
		for _, server := range []netip.Addr{testServer4, testServer6} {
			err = errors.Join(err, l.unserve(netip.AddrPortFrom(server, dnsPort)))
		}
	}()
	a := Answer{Item: entries.Item{Key: key, Entry: entry, Expires: Now(), Until: Now()}, FixedTTL: ttl, Series: testSeries}
	if err := l.Put(&a); err != nil {
		return err
	}
	if err := l.serve(netip.AddrPortFrom(testServer4, dnsPort)); err != nil {
		return err
	}
	plain := append([]byte{0xbe, 0xef, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, bare...)
	if _, ok, err := l.Try(testServer4, plain); err != nil {
		return err
	} else if ok { // entries would be served for longer than D-070 allows
		return errors.New("the program answers when an answer's time is over: this process has another clock than the kernel (a time namespace)")
	}
	a.Expires, a.Until = Now()+testTime, Now()+testTime
	if err := l.Put(&a); err != nil {
		return err
	}
	for _, server := range []netip.Addr{testServer4, testServer6} {
		if err := l.serve(netip.AddrPortFrom(server, dnsPort)); err != nil {
			return err
		}
		for _, opt := range [][]byte{nil, {0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0}} {
			question := append(append([]byte{0xbe, 0xef, 1, 0, 0, 1, 0, 0, 0, 0, 0, byte(len(opt) / 11)}, bytes.ToUpper(bare)...), opt...)
			want := append(entry.AppendReply(nil, &answers.Reply{ID: 0xbeef, Question: bytes.ToUpper(bare), RD: true, TTL: ttl}), opt...)
			want[11] = byte(len(opt) / 11)
			switch got, ok, err := l.Try(server, question); {
			case err != nil:
				return err
			case !ok:
				return fmt.Errorf("the program does not answer at %s", server)
			case !bytes.Equal(got, want):
				return fmt.Errorf("the program answers at %s with %x, and not with %x", server, got, want)
			}
		}
	}
	return nil
}
