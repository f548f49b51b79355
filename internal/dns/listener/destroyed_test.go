package listener

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDestroyed: another program destroys the socket (SOCK_DESTROY, by `ss -K`, or to end the connections to a backend that is gone). The
// socket stays bound, and the server continues to read it.
func TestDestroyed(t *testing.T) {
	host, pods := twoPods(t)
	eachWay(t, host, steering, func(t *testing.T, _ *Server, cfg Config, _ *handler, q []byte) {
		conn := dialFrom(t, pods["fast"], cfg)
		for range 3 {
			if gone := host.Run("ss", "-H", "-auK", "sport", "=", ":53"); !strings.Contains(gone, steering.String()) {
				t.Fatalf("the socket was not destroyed: %q", gone)
			}
			testutil.Eventually(t, func() error {
				conn.SetDeadline(time.Now().Add(testutil.Silence)) // one attempt
				if _, err := conn.Write(q); err != nil {
					return err
				}
				_, err := conn.Read(make([]byte, 512))
				return err
			})
		}
	})
}

// TestDestroyedListener: another program destroys the listening socket. The server listens again, and a new connection gets several
// answers. (The kernel does not destroy MPTCP listeners, which package net uses where it can: tcp_abort_override. Many nodes have no
// MPTCP.)
func TestDestroyedListener(t *testing.T) {
	host, pods := twoPods(t)
	if host.HasSysctl("net.mptcp.enabled") {
		host.Sysctl("net.mptcp.enabled", "0")
	}
	for family, at := range map[string]netip.Addr{"IPv4": steering, "IPv6": steering6} {
		t.Run(family, func(t *testing.T) {
			eachWay(t, host, at, func(t *testing.T, _ *Server, cfg Config, _ *handler, q []byte) {
				framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
				for range 3 {
					if gone := host.Run("ss", "-H", "-atK", "sport", "=", ":53"); !strings.Contains(gone, "LISTEN") {
						t.Fatalf("the listener was not destroyed: %q", gone)
					}
					testutil.Eventually(t, func() (err error) {
						var conn net.Conn
						pods["fast"].Do(func() { conn, err = net.DialTimeout("tcp", addressOf(cfg), testutil.Silence) })
						if err != nil {
							return err
						}
						defer conn.Close()
						conn.SetDeadline(time.Now().Add(testutil.Silence)) // one attempt
						for range 2 {
							if _, err := conn.Write(framed); err != nil {
								return err
							}
							var size [2]byte
							if _, err := io.ReadFull(conn, size[:]); err != nil {
								return err
							}
							if _, err := io.ReadFull(conn, make([]byte, binary.BigEndian.Uint16(size[:]))); err != nil {
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
