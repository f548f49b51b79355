package listener

import (
	"bytes"
	"net"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestUnreadAnswers: the kernel's memory for TCP answers that clients do not read is bounded for each connection, and so in sum; another
// client is answered meanwhile.
func TestUnreadAnswers(t *testing.T) {
	testutil.RequireRoot(t)
	s, cfg := start(t, answer)
	const connections, queries = 40, 2000
	wire := testutil.Packed(t, question("unread.example.", dns.TypeTXT))
	flood := bytes.Repeat(framed(wire), queries)
	for range connections {
		conn, err := net.Dial("tcp", addressOf(cfg))
		testutil.Must(t, err)
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		write(t, conn, flood)
	}
	most, sum := 0, 0
	sample := func() {
		sum = 0
		s.mu.Lock()
		points := s.points
		s.mu.Unlock()
		for _, p := range points {
			p.conns.mu.Lock()
			for c := range p.conns.open {
				n := queued(c)
				most, sum = max(most, n), sum+n
			}
			p.conns.mu.Unlock()
		}
	}
	testutil.Eventually(t, func() error {
		sample()
		return testutil.ErrorIf(most < maxUnread/2, "at most %d bytes wait for a client", most)
	})
	for range 10 { // each answer to another client comes after more of the flood was dealt with
		if m := testutil.Exchange(t, "tcp", addressOf(cfg), question("read.example.", dns.TypeA)); len(m.Answer) != 1 {
			t.Errorf("another client is not answered: %v", m)
		}
		sample()
		// The kernel looks at its bound, twice ours, before it takes a segment of at most 64 KiB.
		if bound := 2*maxUnread + 64<<10; most > bound || sum > connections*bound {
			t.Fatalf("%d bytes for one connection, %d for all", most, sum)
		}
	}
}

// queued is how many bytes of a connection's answers its client has not acknowledged.
func queued(c *stream) (n int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
