package listener

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDestroyed: another program destroys the UDP socket or the listening socket (SOCK_DESTROY, by `ss -K`, or to end the connections to a
// backend that is gone). The UDP socket stays bound, and the server continues to read it, also from a client of before. The server listens
// again, and a new connection gets several answers. (The kernel does not destroy MPTCP listeners, which package net uses where it can:
// tcp_abort_override. Many nodes have no MPTCP.)
func TestDestroyed(t *testing.T) {
	host, pods := twoPods(t)
	if host.HasSysctl("net.mptcp.enabled") {
		host.Sysctl("net.mptcp.enabled", "0")
	}
	for name, tc := range map[string]struct {
		at                     netip.Addr
		network, flags, socket string
	}{
		"UDP, IPv4": {steering, "udp", "-auK", steering.String()},
		"UDP, IPv6": {steering6, "udp", "-auK", steering6.String()},
		"TCP, IPv4": {steering, "tcp", "-atK", "LISTEN"},
		"TCP, IPv6": {steering6, "tcp", "-atK", "LISTEN"},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, host, tc.at, func(t *testing.T, _ *Server, cfg Config, _ *handler, _ []byte) {
				before := dialFrom(t, pods["fast"], cfg)
				for range 3 {
					if gone := host.Run("ss", "-H", tc.flags, "sport", "=", ":53"); !strings.Contains(gone, tc.socket) {
						t.Fatalf("the socket was not destroyed: %q", gone)
					}
					testutil.Eventually(t, func() (err error) {
						conn := before
						if tc.network == "tcp" {
							pods["fast"].Do(func() { conn, err = net.DialTimeout("tcp", addressOf(cfg), testutil.Silence) })
							if err != nil {
								return err
							}
							defer conn.Close()
						}
						conn.SetDeadline(time.Now().Add(testutil.Silence)) // one attempt
						client := &dns.Conn{Conn: conn}
						for range 2 {
							if err := client.WriteMsg(question("a.example.org.", dns.TypeA)); err != nil {
								return err
							}
							if _, err := client.ReadMsg(); err != nil {
								return err
							}
						}
						return nil
					})
				}
			})
		})
	}
}
