package listener

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestUnsendable: if a rule of the node's OUTPUT chain drops some answers, the others of the same batch are sent.
func TestUnsendable(t *testing.T) {
	host, pods := twoPods(t)
	host.Run("iptables", "-A", "OUTPUT", "-d", "10.0.0.1", "-p", "udp", "-j", "DROP")
	eachWay(t, host, steering, func(t *testing.T, s *Server, cfg Config, _ *handler, q []byte) {
		mute, heard := dialFrom(t, pods["slow"], cfg), dialFrom(t, pods["fast"], cfg)
		s.Pause() // so that they lie in one batch
		for i := range 30 {
			if mute.Write(q); i%3 == 0 {
				heard.Write(q)
			}
		}
		s.Resume()
		heard.SetReadDeadline(time.Now().Add(testutil.Patience()))
		for i := range 10 {
			if _, err := heard.Read(make([]byte, 512)); err != nil {
				t.Fatalf("answer %d: %v", i, err)
			}
		}
	})
}

// TestOddPackets: no packet that a pod makes itself stops the server, and those that can be answered are answered.
func TestOddPackets(t *testing.T) {
	host, pods := twoPods(t)
	pod, server := netip.MustParseAddr("10.0.0.1"), steering
	const port = 4000 // one port and one ID, of which no chance makes the wrong checksum a right one
	eachWay(t, host, steering, func(t *testing.T, s *Server, cfg Config, h *handler, good []byte) {
		good[0], good[1] = 0, 7
		said := slices.Clone(good)
		said[2] |= 0x80
		neighbour := dialFrom(t, pods["fast"], cfg)
		var own net.Conn
		var err error
		pods["slow"].Do(func() { own, err = (&net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}).Dial("udp", addressOf(cfg)) })
		testutil.Must(t, err)
		defer own.Close()
		for _, tc := range []struct {
			name   string
			p      rawPacket
			answer bool
		}{
			{"without a checksum", rawPacket{from: pod, port: port, body: good}, true},
			{"with ECN and a class of service", rawPacket{from: pod, port: port, body: good, tos: 0xbb}, true},
			{"longer than its length", rawPacket{from: pod, port: port, body: append(slices.Clone(good), 1, 2, 3), length: 8 + len(good)}, true},
			{"shorter than its length", rawPacket{from: pod, port: port, body: good, length: 900}, false},
			{"from port 0", rawPacket{from: pod, body: good}, false},
			{"from port 53", rawPacket{from: pod, port: 53, body: good}, false},
			{"as from the server", rawPacket{from: server, port: 53, body: good}, false},
			{"with a wrong checksum", rawPacket{from: pod, port: port, body: good, checksum: 1}, false},
			{"as from everybody", rawPacket{from: netip.MustParseAddr("255.255.255.255"), port: port, body: good}, false},
			{"as from a group", rawPacket{from: netip.MustParseAddr("224.0.0.1"), port: port, body: good}, false},
			{"as from loopback", rawPacket{from: netip.MustParseAddr("127.0.0.1"), port: port, body: good}, false},
			{"an answer", rawPacket{from: pod, port: port, body: said}, false},
			{"nothing", rawPacket{from: pod, port: port}, false},
			{"eleven bytes", rawPacket{from: pod, port: port, body: good[:11]}, false},
			{"zeros", rawPacket{from: pod, port: port, body: make([]byte, 1400)}, h.first == nil},
		} {
			if h.first != nil && tc.name == "zeros" || h.first != nil && len(tc.p.body) < 12 || tc.name == "an answer" && h.first != nil {
				continue // echo answers anything
			}
			tc.p.send(t, pods["slow"], server)
			neighbour.SetDeadline(time.Now().Add(testutil.Patience()))
			neighbour.Write(good)
			if _, err := neighbour.Read(make([]byte, 512)); err != nil {
				t.Fatalf("after a packet %s the neighbour: %v", tc.name, err)
			}
			own.SetDeadline(time.Now().Add(testutil.Patience()))
			if tc.answer {
				if _, err := own.Read(make([]byte, 512)); err != nil {
					t.Errorf("%s: %v", tc.name, err)
				}
				continue
			}
			// The packet was read before the neighbour's query. A query of the pod's own is answered after it.
			testutil.WaitFor("the packet is dealt with", func() bool { return inWork(s) == 0 })
			marker, got := slices.Clone(good), make([]byte, 512)
			marker[0] ^= 0xff
			own.Write(marker)
			if _, err := own.Read(got); err != nil {
				t.Fatalf("after a packet %s the pod itself: %v", tc.name, err)
			}
			if !slices.Equal(got[:2], marker[:2]) {
				t.Fatalf("%s: answered", tc.name)
			}
		}
	})
}

// rawPacket is an IPv4 packet with a UDP datagram. The kernel puts the pod's address in place of the source 0.0.0.0 (raw(7)).
type rawPacket struct {
	from   netip.Addr
	port   uint16
	body   []byte
	tos    byte
	length int // of the datagram, as its header has it; 0: as it is

	checksum uint16 // 0: none (RFC 768)
}

func (p rawPacket) send(t *testing.T, pod *testutil.NetNS, to netip.Addr) {
	t.Helper()
	udp := make([]byte, 8, 8+len(p.body))
	binary.BigEndian.PutUint16(udp, p.port)
	binary.BigEndian.PutUint16(udp[2:], 53)
	udp = append(udp, p.body...)
	binary.BigEndian.PutUint16(udp[4:], uint16(cmp.Or(p.length, len(udp))))
	binary.BigEndian.PutUint16(udp[6:], p.checksum)
	ip := make([]byte, 20, 20+len(udp)) // the kernel fills in length, ID and checksum (raw(7))
	ip[0], ip[1], ip[8], ip[9] = 0x45, p.tos, 64, unix.IPPROTO_UDP
	copy(ip[12:], p.from.AsSlice())
	copy(ip[16:], to.AsSlice())
	var err error
	pod.Do(func() {
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW); err != nil {
			return
		}
		defer unix.Close(fd)
		err = unix.Sendto(fd, append(ip, udp...), 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
	testutil.Must(t, err)
}
