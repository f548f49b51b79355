package prober

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// Sizes of headers without options.
const (
	ethernetHeader = 14
	ipv4Header     = 20
	ipv6Header     = 40
	udpHeader      = 8
	tcpHeader      = 20
)

// TCP flags, RFC 9293 section 3.1.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

// packet is one UDP datagram or TCP segment, or the ICMP error for one that the prober sent.
type packet struct {
	protocol         steer.Protocol
	source, target   netip.AddrPort
	flags            byte   // of TCP
	sequence, acks   uint32 // of TCP
	payload          []byte
	segmentSize      uint16 // of TCP: announced in a SYN; 0: none
	refused          error  // from an ICMP message: source and target are then those of the packet that it is about
	toUs             bool   // sent to the prober's hardware address
	neitherUDPNorTCP bool   // the other fields are not set then
}

// errNoPacket means that a frame is not for the prober.
var errNoPacket = errors.New("not a UDP, TCP or ICMP packet")

// frame encodes the packet for the link, from the prober's end to the host's.
func (p packet) frame() []byte {
	kind := uint16(unix.ETH_P_IPV6)
	if p.source.Addr().Is4() {
		kind = unix.ETH_P_IP
	}
	b := make([]byte, 0, ethernetHeader+ipv6Header+tcpHeader+4+len(p.payload))
	b = append(append(b, hostMAC()...), ownMAC()...)
	b = binary.BigEndian.AppendUint16(b, kind)
	transport := p.transport()
	if kind == unix.ETH_P_IP {
		header := make([]byte, ipv4Header)
		header[0], header[8], header[9] = 4<<4|ipv4Header/4, 64, byte(p.protocol)
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+len(transport))) //nolint:gosec // a query is short
		header[6] = 0x40                                                          // don't fragment
		copy(header[12:], p.source.Addr().AsSlice())
		copy(header[16:], p.target.Addr().AsSlice())
		binary.BigEndian.PutUint16(header[10:], checksum(0, header))
		return append(append(b, header...), transport...)
	}
	header := make([]byte, ipv6Header)
	header[0], header[6], header[7] = 6<<4, byte(p.protocol), 64
	binary.BigEndian.PutUint16(header[4:], uint16(len(transport))) //nolint:gosec // a query is short
	copy(header[8:], p.source.Addr().AsSlice())
	copy(header[24:], p.target.Addr().AsSlice())
	return append(append(b, header...), transport...)
}

// transport is the packet from its ports on, with the checksum over the pseudo-header (RFC 768, RFC 9293, RFC 8200 section 8.1).
func (p packet) transport() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.source.Port())
	b = binary.BigEndian.AppendUint16(b, p.target.Port())
	at := 6
	if p.protocol == steer.UDP {
		b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(p.payload))) //nolint:gosec // a query is short
		b = append(b, 0, 0)
	} else {
		at = 16
		b = binary.BigEndian.AppendUint32(b, p.sequence)
		b = binary.BigEndian.AppendUint32(b, p.acks)
		length := byte(tcpHeader / 4)
		if p.segmentSize > 0 {
			length++
		}
		b = append(b, length<<4, p.flags, 0xff, 0xff, 0, 0, 0, 0) // a window of 64 KiB holds any answer
		if p.segmentSize > 0 {
			b = append(b, 2, 4) // the option's kind and length
			b = binary.BigEndian.AppendUint16(b, p.segmentSize)
		}
	}
	b = append(b, p.payload...)
	pseudo := append(p.source.Addr().AsSlice(), p.target.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, byte(p.protocol))
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(b))) //nolint:gosec // a query is short
	sum := checksum(uint32(^checksum(0, pseudo)), b)
	if sum == 0 && p.protocol == steer.UDP {
		sum = 0xffff // 0 stands for none
	}
	binary.BigEndian.PutUint16(b[at:], sum)
	return b
}

// checksum is the Internet checksum of b, continued from sum (RFC 1071).
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // folded
}

// readFrame parses a frame from the link. It does not verify checksums, because the host passes packets over a veth without them, as to a
// device that would fill them in. The payload shares the frame's memory.
func readFrame(b []byte) (packet, error) {
	if len(b) < ethernetHeader {
		return packet{}, errNoPacket
	}
	toUs := bytes.Equal(b[:6], ownMAC())
	kind := binary.BigEndian.Uint16(b[12:])
	b = b[ethernetHeader:]
	var p packet
	var err error
	switch kind {
	case unix.ETH_P_IP:
		p, err = readIPv4(b, true)
	case unix.ETH_P_IPV6:
		p, err = readIPv6(b, true)
	default:
		return packet{}, errNoPacket
	}
	p.toUs = toUs
	return p, err
}

func readIPv4(b []byte, whole bool) (packet, error) {
	if len(b) < ipv4Header || b[0]>>4 != 4 {
		return packet{}, errNoPacket
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if fragment := binary.BigEndian.Uint16(b[6:]) & 0x3fff; fragment != 0 || header < ipv4Header || len(b) < header {
		return packet{}, errNoPacket // no answer to the prober is fragmented
	}
	source, target := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	body := b[header:]
	if whole {
		if total < header || total > len(b) {
			return packet{}, errNoPacket
		}
		body = b[header:total]
	}
	if b[9] == unix.IPPROTO_ICMP && whole {
		if len(body) < 8 || body[0] != 3 { // destination unreachable, RFC 792
			return packet{}, errNoPacket
		}
		about, err := readIPv4(body[8:], false)
		about.refused = unreachable(map[byte]unix.Errno{3: unix.ECONNREFUSED, 9: unix.EACCES, 10: unix.EACCES, 13: unix.EACCES}, body[1])
		return about, err
	}
	return readTransport(steer.Protocol(b[9]), source, target, body, whole)
}

func readIPv6(b []byte, whole bool) (packet, error) {
	if len(b) < ipv6Header || b[0]>>4 != 6 {
		return packet{}, errNoPacket
	}
	source, target := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	length := int(binary.BigEndian.Uint16(b[4:]))
	body := b[ipv6Header:]
	if whole {
		if length > len(body) {
			return packet{}, errNoPacket
		}
		body = body[:length]
	}
	if b[6] == unix.IPPROTO_ICMPV6 && whole {
		if len(body) < 8 || body[0] != 1 { // destination unreachable, RFC 4443 section 3.1
			return packet{}, errNoPacket
		}
		about, err := readIPv6(body[8:], false)
		about.refused = unreachable(map[byte]unix.Errno{1: unix.EACCES, 4: unix.ECONNREFUSED, 5: unix.EACCES, 6: unix.EACCES}, body[1])
		return about, err
	}
	return readTransport(steer.Protocol(b[6]), source, target, body, whole)
}

// unreachable is the error that a socket would report.
func unreachable(codes map[byte]unix.Errno, code byte) error {
	if e, ok := codes[code]; ok {
		return e
	}
	return unix.EHOSTUNREACH
}

// readTransport parses from the ports on. An ICMP message is sure to quote only the ports.
func readTransport(protocol steer.Protocol, source, target netip.Addr, b []byte, whole bool) (packet, error) {
	p := packet{protocol: protocol}
	if protocol != steer.UDP && protocol != steer.TCP || len(b) < 4 {
		return packet{neitherUDPNorTCP: true}, errNoPacket
	}
	p.source = netip.AddrPortFrom(source, binary.BigEndian.Uint16(b))
	p.target = netip.AddrPortFrom(target, binary.BigEndian.Uint16(b[2:]))
	if !whole {
		return p, nil
	}
	if protocol == steer.UDP {
		if len(b) < udpHeader {
			return packet{}, errNoPacket
		}
		length := int(binary.BigEndian.Uint16(b[4:]))
		if length < udpHeader || length > len(b) {
			return packet{}, errNoPacket
		}
		p.payload = b[udpHeader:length]
		return p, nil
	}
	if len(b) < tcpHeader {
		return packet{}, errNoPacket
	}
	header := int(b[12]>>4) * 4
	if header < tcpHeader || header > len(b) {
		return packet{}, errNoPacket
	}
	p.sequence, p.acks, p.flags = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), b[13]
	p.payload = b[header:]
	return p, nil
}

func (p packet) String() string {
	return fmt.Sprintf("%s %s → %s, flags %#x, %d bytes", p.protocol, p.source, p.target, p.flags, len(p.payload))
}

// framesMAC is the hardware address of the prober's end. The host's neighbour entries have another one (ownMAC), so the host's network
// ignores the packets that arrive at this end, and only the packet socket reads them.
func framesMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x03} }
