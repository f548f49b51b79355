package listener

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestForgedErrors: a pod forges ICMP errors about the agent's answers to another pod, also that they are too large. The other pod gets its
// answers, large ones too, and the server continues to read the socket.
func TestForgedErrors(t *testing.T) {
	host, pods := twoPods(t)
	var icmp *testutil.Forger
	pods["slow"].Do(func() { icmp = testutil.NewForger(t) })
	for family, tc := range map[string]struct {
		at     netip.Addr
		errors [][3]int // type, code and the last word of the header
	}{
		"IPv4": {steering, [][3]int{{3, 0}, {3, 1}, {3, 2}, {3, 3}, {3, 4, 552}, {3, 4, 68}, {3, 13}, {11, 0}, {12, 0}, {4, 0}}},
		"IPv6": {steering6, [][3]int{{1, 0}, {1, 1}, {1, 3}, {1, 4}, {2, 0, 1280}, {2, 0, 68}, {3, 0}, {4, 1, 6}}},
	} {
		t.Run(family, func(t *testing.T) {
			eachWay(t, host, tc.at, func(t *testing.T, _ *Server, cfg Config, h *handler, q []byte) {
				if h.first == nil {
					q = testutil.Packed(t, question("large.example.org.", dns.TypeTXT))
				}
				conn := dialFrom(t, pods["fast"], cfg)
				server, client := netip.AddrPortFrom(tc.at, cfg.Port), conn.LocalAddr().(*net.UDPAddr).AddrPort()
				for _, e := range tc.errors {
					for range 5 {
						icmp.Send(byte(e[0]), byte(e[1]), uint32(e[2]), server, client)
						conn.SetDeadline(time.Now().Add(testutil.Patience()))
						if _, err := conn.Write(q); err != nil {
							t.Fatalf("after %v: %v", e, err)
						}
						n, err := conn.Read(make([]byte, 2000))
						if err != nil || h.first == nil && n < 1000 {
							t.Fatalf("after %v: an answer of %d bytes, %v", e, n, err)
						}
					}
				}
			})
		})
	}
}
