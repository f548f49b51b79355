package prober

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

var samePacket = []cmp.Option{cmp.AllowUnexported(packet{}), cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty(), cmpopts.EquateErrors()}

func packets() []packet {
	var out []packet
	for _, ends := range [][2]string{{"169.254.20.250:40000", "169.254.20.10:53"}, {"[fd00:90de:d95::fa]:40000", "[fd00:90de:d95::a]:53"}} {
		source, target := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		out = append(out,
			packet{protocol: steer.UDP, source: source, target: target, payload: []byte("odd")},
			packet{protocol: steer.UDP, source: source, target: target},
			packet{protocol: steer.TCP, source: source, target: target, flags: flagPSH | flagACK, sequence: 1 << 31, acks: 7, payload: []byte("question")},
			packet{protocol: steer.TCP, source: source, target: target, flags: flagSYN, sequence: 1<<32 - 1, segmentSize: maxSegment},
		)
	}
	return out
}

// A packet is read as it was written; only the option is not looked at.
func TestFrameSurvives(t *testing.T) {
	for _, p := range packets() {
		got, err := readFrame(p.frame())
		p.segmentSize = 0
		if err != nil {
			t.Errorf("%s: %v", p, err)
		} else if diff := cmp.Diff(p, got, samePacket...); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p, diff)
		}
	}
}

// The kernel checks these (TestFramesProbe); a sum over all that is covered comes to nothing.
func TestChecksums(t *testing.T) {
	if got := checksum(0, []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != 0x220d { // RFC 1071 section 3: ^0xddf2
		t.Errorf("checksum %#x, want 0x220d", got)
	}
	for _, p := range packets() {
		b := p.transport()
		pseudo := append(p.source.Addr().AsSlice(), p.target.Addr().AsSlice()...)
		pseudo = binary.BigEndian.AppendUint16(append(pseudo, 0, byte(p.protocol)), uint16(len(b))) //nolint:gosec // short
		if sum := checksum(uint32(^checksum(0, pseudo)), b); sum != 0 {
			t.Errorf("%s: the sum is %#x, want 0", p, sum)
		}
	}
}

// unreachableFor is the frame by which a router or the host tells that p was not delivered.
func unreachableFor(p packet, code byte) []byte {
	inner := p.frame()[ethernetHeader:]
	icmp := append([]byte{3, code, 0, 0, 0, 0, 0, 0}, inner...)
	frame := append(append([]byte{}, ownMAC()...), hostMAC()...)
	if p.source.Addr().Is4() {
		header := make([]byte, ipv4Header)
		header[0], header[9] = 0x45, unix.IPPROTO_ICMP
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+len(icmp))) //nolint:gosec // short
		copy(header[12:], p.target.Addr().AsSlice())
		copy(header[16:], p.source.Addr().AsSlice())
		return append(append(binary.BigEndian.AppendUint16(frame, unix.ETH_P_IP), header...), icmp...)
	}
	icmp[0] = 1
	header := make([]byte, ipv6Header)
	header[0], header[6] = 0x60, unix.IPPROTO_ICMPV6
	binary.BigEndian.PutUint16(header[4:], uint16(len(icmp))) //nolint:gosec // short
	copy(header[8:], p.target.Addr().AsSlice())
	copy(header[24:], p.source.Addr().AsSlice())
	return append(append(binary.BigEndian.AppendUint16(frame, unix.ETH_P_IPV6), header...), icmp...)
}

func TestReadUnreachable(t *testing.T) {
	for _, p := range packets() {
		codes := map[byte]error{3: unix.ECONNREFUSED, 13: unix.EACCES, 1: unix.EHOSTUNREACH}
		if p.source.Addr().Is6() {
			codes = map[byte]error{4: unix.ECONNREFUSED, 1: unix.EACCES, 3: unix.EHOSTUNREACH}
		}
		for code, want := range codes {
			got, err := readFrame(unreachableFor(p, code))
			if err != nil || !errors.Is(got.refused, want) || got.source != p.source || got.target != p.target || !got.toUs {
				t.Errorf("code %d about %s: %+v, %v; want %v", code, p, got, err, want)
			}
		}
	}
}

// FuzzReadFrame: whatever comes over the link, nothing is read beyond it, and a packet that was read can be written and read
// again.
func FuzzReadFrame(f *testing.F) {
	for _, p := range packets() {
		f.Add(p.frame())
		f.Add(unreachableFor(p, 3))
	}
	f.Add([]byte{})
	f.Add(make([]byte, 60))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := readFrame(b)
		if err != nil || p.refused != nil {
			return
		}
		if len(p.payload) > 60000 || len(p.payload)+ethernetHeader > len(b) {
			return
		}
		again, err := readFrame(p.frame())
		p.toUs, again.toUs = false, false
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if diff := cmp.Diff(p, again, samePacket...); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
