package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/hostnet"
)

const queryTimeout = 2 * time.Second

// query is a DNS query to one server.
type query struct {
	name  string // with the final dot
	qtype uint16
	tcp   bool     // only over TCP
	mark  int      // SO_MARK of the socket; 0: none
	netNS *os.File // the network namespace of the socket; nil: this process's
}

// send sends the query over UDP, and again over TCP if the answer is truncated. If q.tcp is set, it sends it only over TCP.
func (q query) send(ctx context.Context, server netip.AddrPort) (answer *dns.Msg, err error) {
	networks := []string{"udp", "tcp"}
	if q.tcp {
		networks = networks[1:]
	}
	for _, network := range networks {
		if answer, err = q.exchange(ctx, network, server.String()); err != nil {
			return nil, shortError(err)
		} else if !answer.Truncated {
			break
		}
	}
	return answer, nil
}

func (q query) exchange(ctx context.Context, network, server string) (*dns.Msg, error) {
	dialer := net.Dialer{Timeout: queryTimeout, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if q.mark == 0 {
			return nil
		}
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, q.mark) }), err)
	}}
	var conn net.Conn
	dial := func() (err error) {
		conn, err = dialer.DialContext(ctx, network, server)
		return err
	}
	var err error
	if q.netNS == nil {
		err = dial()
	} else {
		err = hostnet.InNetNS(int(q.netNS.Fd()), dial)
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer is read
	client := dns.Client{Net: network, Timeout: queryTimeout}
	answer, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(q.name, q.qtype), &dns.Conn{Conn: conn})
	return answer, err
}

// answers returns nil if the server answers the query with NOERROR or NXDOMAIN. If the server uses TLS, answers only connects.
func (q query) answers(ctx context.Context, server nameserver.Address) error {
	if server.TLS {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", server.Addr.String())
		if err != nil {
			return shortError(err)
		}
		return conn.Close()
	}
	m, err := q.send(ctx, server.Addr)
	if err == nil && m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		err = fmt.Errorf("it answers %s", cmp.Or(dns.RcodeToString[m.Rcode], "with an unknown code"))
	}
	return err
}

// Answers sends a query for a name's address to a server, as the host's own processes do. It returns nil if the server answers with NOERROR
// or NXDOMAIN.
func Answers(ctx context.Context, server netip.Addr, name string) error {
	return query{name: dns.Fqdn(name), qtype: dns.TypeA}.answers(ctx, nameserver.At(server))
}

// shortError returns a network error without ports, which change with each try.
func shortError(err error) error {
	var op *net.OpError
	switch timeout := net.Error(nil); {
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("no answer within %v", queryTimeout)
	case errors.As(err, &op):
		return op.Err
	}
	return err
}
