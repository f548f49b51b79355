package front

import (
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDestroyed: somebody destroys the socket (SOCK_DESTROY, by `ss -K` or a program that ends what is connected to a backend that went).
// It stays bound, and the server goes on reading it. (Of TCP, the kernel ends connections so, not listeners.)
func TestDestroyed(t *testing.T) {
	host, pods := twoPods(t)
	eachWay(t, host, steering, func(t *testing.T, _ *Server, cfg Config, _ *handler, q []byte) {
		conn := dialFrom(t, pods["fast"], cfg)
		for range 3 {
			if gone := host.Run("ss", "-H", "-auK", "sport", "=", ":53"); !strings.Contains(gone, steering.String()) {
				t.Fatalf("the socket was not destroyed: %q", gone)
			}
			testutil.Eventually(t, 5*time.Second, func() error {
				conn.SetDeadline(time.Now().Add(time.Second))
				if _, err := conn.Write(q); err != nil {
					return err
				}
				_, err := conn.Read(make([]byte, 512))
				return err
			})
		}
	})
}
