package testutil

import (
	"context"
	"net"

	"github.com/miekg/dns"
)

// Piped returns a dialer to a DNS server in this process. serve gets one message of each connection, which ends with it.
func Piped(serve func(c *dns.Conn, m *dns.Msg)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			c := &dns.Conn{Conn: far}
			defer c.Close()
			if m, err := c.ReadMsg(); err == nil {
				serve(c, m)
			}
		}()
		return near, nil
	}
}

// Reply answers a message with records.
func Reply(c *dns.Conn, m *dns.Msg, records ...dns.RR) error {
	answer := new(dns.Msg).SetReply(m)
	answer.Answer = records
	return c.WriteMsg(answer)
}
