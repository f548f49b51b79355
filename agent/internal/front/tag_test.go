package front

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// FuzzTag notes a source behind every kind of datagram: it is read back, the message is not changed by it, and who is noted
// as nobody is just who the library refuses by the header.
func FuzzTag(f *testing.F) {
	wire, err := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA).Pack()
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range [][]byte{wire, wire[:11], wire[:12], nil, bytes.Repeat([]byte{255}, 600), append(wire, make([]byte, 600)...)} {
		f.Add(m, []byte{10, 244, 1, 2})
		f.Add(m, []byte(net.ParseIP("fd00::7")))
	}
	f.Fuzz(func(t *testing.T, datagram, ip []byte) {
		if len(ip) != 4 && len(ip) != 16 {
			ip = []byte{192, 0, 2, 1}
		}
		client := &net.UDPAddr{IP: ip, Port: 40000}
		buffer := make([]byte, questionMost+tagSize)
		m := buffer[:min(copy(buffer, datagram), questionMost)]
		before := bytes.Clone(m)
		src := tag(m, client)
		if !bytes.Equal(m, before) {
			t.Fatal("the message was changed")
		}
		if src == nobody() {
			if len(m) >= headerSize && dns.DefaultMsgAcceptFunc(header(m)) == dns.MsgAccept {
				t.Fatal("counted for nobody, but the library takes it")
			}
			return
		}
		if want, _ := netip.AddrFromSlice(ip); src != want.Unmap() || tagged(m) != src {
			t.Fatalf("counted for %s, given back by %s, came from %s", src, tagged(m), want)
		}
	})
}
