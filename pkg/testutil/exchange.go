package testutil

import (
	"net"
	"runtime"

	"github.com/miekg/dns"
)

// Packed returns a message as bytes.
func Packed(t TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	Must(t, err)
	return b
}

// Exchange sends a query over "udp" or "tcp" from this netns and returns the answer, for which it waits without a deadline.
func Exchange(t TB, network, server string, q *dns.Msg) *dns.Msg {
	t.Helper()
	conn, err := net.Dial(network, server)
	Must(t, err)
	defer conn.Close()
	m := RoundTrip(t, &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, q)
	if m.Id != q.Id {
		t.Fatalf("%s %s: an answer with ID %d to %d", network, server, m.Id, q.Id)
	}
	return m
}

// RoundTrip is Exchange on a connection.
func RoundTrip(t TB, conn *dns.Conn, q *dns.Msg) (m *dns.Msg) {
	t.Helper()
	err := conn.WriteMsg(q)
	if err == nil {
		m, err = conn.ReadMsg()
	}
	if err != nil {
		t.Fatalf("%s %s, %s in %d bytes: %v", conn.RemoteAddr().Network(), conn.RemoteAddr(), q.Question[0].Name, q.Len(), err)
	}
	return m
}

// WaitFor yields the processor until ok holds. Only the test binary's own timeout bounds it; the stack trace shows what it waits for.
func WaitFor(_ string, ok func() bool) {
	for !ok() {
		runtime.Gosched()
	}
}
