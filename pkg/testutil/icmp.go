package testutil

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Forger sends ICMP errors that quote another program's datagram, as a router does that cannot forward it. It sends them in the netns in
// which it was made.
type Forger struct {
	t        testing.TB
	fd4, fd6 int
}

// NewForger makes a Forger in the calling thread's netns. It needs root.
func NewForger(t testing.TB) *Forger {
	t.Helper()
	RequireRoot(t)
	f := &Forger{t: t}
	for family, s := range map[int]struct {
		fd       *int
		protocol int
	}{unix.AF_INET: {&f.fd4, unix.IPPROTO_ICMP}, unix.AF_INET6: {&f.fd6, unix.IPPROTO_ICMPV6}} {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.protocol)
		if err != nil {
			t.Fatalf("make a raw socket: %v", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		*s.fd = fd
	}
	return f
}

// Send sends an ICMP error of the given type (kind) and code to from, the sender of a UDP datagram to to. rest is the last 32-bit word of
// the ICMP header (RFC 792, RFC 4443).
func (f *Forger) Send(kind, code byte, rest uint32, from, to netip.AddrPort) {
	f.t.Helper()
	m := binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, rest)
	if from.Addr().Is4() { // RFC 791, section 3.1
		m = append(m, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	} else { // RFC 8200, section 3
		m = append(m, 0x60, 0, 0, 0, 0, 40, unix.IPPROTO_UDP, 64)
	}
	m = slices.Concat(m, from.Addr().AsSlice(), to.Addr().AsSlice())
	m = binary.BigEndian.AppendUint16(m, from.Port())
	m = binary.BigEndian.AppendUint16(m, to.Port())
	m = append(m, 0, 40, 0, 0)
	fd := f.fd6
	var at unix.Sockaddr = &unix.SockaddrInet6{Addr: from.Addr().As16()}
	if from.Addr().Is4() { // only for ICMPv4; the kernel computes the checksum of ICMPv6
		fd, at = f.fd4, &unix.SockaddrInet4{Addr: from.Addr().As4()}
		sum := uint32(0)
		for i := 0; i < len(m); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(m[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(m[2:], ^uint16(sum>>16+sum)) //nolint:gosec // RFC 1071: the carry was added
	}
	if err := unix.Sendto(fd, m, 0, at); err != nil {
		f.t.Errorf("send an ICMP error: %v", err)
	}
}
