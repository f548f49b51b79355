package steering

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// containerLimit is the memory limit of the agent's container in install/base/daemonset.yaml.
const containerLimit = 256 << 20

// TestUnreadAnswersFitTheContainer lets two pods send queries on 500 TCP connections each and read no answer. The agent's memory with that
// of its sockets, which Linux charges to the container, stays below the container's limit; another pod is answered meanwhile.
func TestUnreadAnswersFitTheContainer(t *testing.T) {
	g := testutil.NewCgroup(t, "memory")
	g.LimitMemory(containerLimit)
	n := newNode(t, setup{})
	greedy, other := []*pod{n.addPod(nil), n.addPod(nil)}, n.addPod(nil)
	n.startIn(g)
	server := n.all()[1] // TCP
	n.wantSteered(other.client(), "before the flood", server)

	const connections, batch = 500, 40
	query := new(dns.Msg).SetQuestion("size-8000.ttl-600.unread.svc.cluster.local.", dns.TypeTXT)
	wire, err := query.Pack()
	testutil.Must(t, err)
	flood := bytes.Repeat(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...), batch)
	var conns []*net.TCPConn
	for _, p := range greedy {
		for range connections {
			conn := p.dial(server.server())
			// What is read at first makes the kernel widen the window, and with it the buffer of a socket whose buffer is not set.
			testutil.Must(t, conn.SetDeadline(time.Now().Add(testutil.Patience())))
			_, err := conn.Write(flood)
			testutil.Must(t, err)
			_, err = io.CopyN(io.Discard, conn, batch*8000)
			testutil.Must(t, err)
			conns = append(conns, conn)
		}
	}
	hot := freshName()
	testutil.Eventually(t, func() error { _, err := other.client().ask(server, hot, testutil.Attempt); return err })
	var peak int64
	for settled := 0; settled < 5; settled++ {
		for _, conn := range conns {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond)) // the agent reads no more of a client that does not read
			_, _ = conn.Write(flood)
		}
		for range 50 { // the agent has answered what came before
			if a, err := other.client().ask(server, hot, testutil.Patience()); err != nil {
				t.Fatalf("another pod during the flood: %v, %v", a, err)
			}
		}
		if now := g.PeakMemory(); now > peak {
			peak, settled = now, 0
		}
		if peak >= containerLimit {
			break
		}
	}
	t.Logf("peak: %d MiB", peak>>20)
	if peak >= containerLimit {
		t.Errorf("the agent and its sockets took %d bytes, the container's limit is %d", peak, containerLimit)
	}
	if bare := int64(len(conns)) * 16 << 10; peak < bare {
		t.Errorf("the agent and its sockets took %d bytes: the flood did not reach it", peak)
	}
}

// dial connects to a server over TCP.
func (p *pod) dial(server netip.AddrPort) (conn *net.TCPConn) {
	p.node.t.Helper()
	p.Do(func() {
		c, err := net.DialTimeout("tcp", server.String(), testutil.Patience())
		testutil.Must(p.node.t, err)
		conn = c.(*net.TCPConn)
	})
	p.node.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadBuffer(64 << 10)
	return conn
}
