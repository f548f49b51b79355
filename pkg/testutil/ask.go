package testutil

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// DigOnce are the options with which dig sends one query, and waits Attempt for its answer.
var DigOnce = []string{"+tries=1", fmt.Sprintf("+time=%d", int(Attempt/time.Second))}

// AskOptions are the options of a query. The zero value is a plain query from any port, which waits Attempt for its answer.
type AskOptions struct {
	Timeout time.Duration  // for one query; 0: Attempt. Set it to Silence if no answer may come
	Source  netip.AddrPort // local address and port, either may be unset
	EDNS    uint16         // UDP payload size to announce; 0: no EDNS
	Options []dns.EDNS0    // EDNS options of the query
	Abort   bool           // close TCP by a reset, so that the same ports may be used again at once
}

func (o AskOptions) timeout() time.Duration {
	if o.Timeout == 0 {
		return Attempt
	}
	return o.Timeout
}

// Answer is a server's answer to one query.
type Answer struct {
	Who    string         // the DNSServer that made the answer; "" if none of them did
	Serial int            // that server's number for this answer, counted up; a cached answer has an old one
	Client netip.Addr     // the client's address as that server saw it
	From   netip.AddrPort // source of the answer, which is always the server that was queried
	Msg    *dns.Msg
	Size   int // size of the DNS message in bytes
	Took   time.Duration
}

// Rcode returns the name of the answer's response code, for example "NOERROR".
func (a *Answer) Rcode() string { return dns.RcodeToString[a.Msg.Rcode] }

func (a *Answer) String() string {
	return fmt.Sprintf("%s #%d %s from %s, %d bytes", a.Who, a.Serial, a.Rcode(), a.From, a.Size)
}

// WrongSourceError is an answer that came from another address than the queried one; a real client would not accept it.
type WrongSourceError struct{ Asked, Came netip.AddrPort }

func (e *WrongSourceError) Error() string {
	return fmt.Sprintf("asked %s but the answer came from %s", e.Asked, e.Came)
}

// Ask sends one query from ns on a socket of its own; network is "udp" or "tcp". The UDP socket is not connected, so
// that an answer from a wrong source is distinguished (WrongSourceError) from none (os.ErrDeadlineExceeded).
func Ask(ns *NetNS, server netip.AddrPort, name string, qtype uint16, network string, opts AskOptions) (*Answer, error) {
	if network == "udp" {
		s, err := OpenUDP(ns, server.Addr().Is4(), opts)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		return s.Ask(server, name, qtype)
	}
	c, err := Dial(ns, network, server, opts)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Ask(name, qtype)
}

// WantWho queries a TXT record once and fails the test unless the named server's answer comes back.
func WantWho(t TB, want string, ns *NetNS, server netip.AddrPort, name string, network string) *Answer {
	t.Helper()
	answer, err := Ask(ns, server, name, dns.TypeTXT, network, AskOptions{EDNS: 1232})
	if err != nil {
		t.Fatalf("from %s: %v", ns.name, err)
	}
	if answer.Who != want {
		t.Fatalf("from %s: %s asked for %s over %s: %v; want %s", ns.name, server, name, network, answer, want)
	}
	return answer
}

func question(name string, qtype uint16, opts AskOptions) *dns.Msg {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	if opts.EDNS > 0 {
		m.SetEdns0(opts.EDNS, false)
		m.IsEdns0().Option = opts.Options
	}
	return m
}

func parseAnswer(raw []byte, from netip.AddrPort) (*Answer, error) {
	m := new(dns.Msg)
	if err := m.Unpack(raw); err != nil {
		return nil, fmt.Errorf("read answer from %s: %w", from, err)
	}
	a := &Answer{From: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Msg: m, Size: len(raw)}
	for _, rr := range m.Extra {
		if txt, ok := rr.(*dns.TXT); ok && strings.EqualFold(txt.Hdr.Name, whoName) && len(txt.Txt) == 3 {
			a.Who = txt.Txt[0]
			a.Serial, _ = strconv.Atoi(txt.Txt[1])
			a.Client, _ = netip.ParseAddr(txt.Txt[2])
		}
	}
	// A cache may have dropped the additional section to make the answer fit.
	if txt := firstTXT(m); a.Who == "" && txt != nil {
		a.Who = txt.Txt[0]
	}
	return a, nil
}

func firstTXT(m *dns.Msg) *dns.TXT {
	for _, rr := range m.Answer {
		if txt, ok := rr.(*dns.TXT); ok && len(txt.Txt) > 0 {
			return txt
		}
	}
	return nil
}

// Socket is one UDP socket, not connected and kept open: one source port that may query several servers in turn.
type Socket struct {
	conn *net.UDPConn
	opts AskOptions
}

// OpenUDP opens a Socket in ns. The caller closes it.
func OpenUDP(ns *NetNS, is4 bool, opts AskOptions) (*Socket, error) {
	local := opts.Source
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
		if is4 {
			local = netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
		}
	}
	var conn *net.UDPConn
	var err error
	if entered := ns.enter(func() { conn, err = net.ListenUDP(family("udp", local), net.UDPAddrFromAddrPort(local)) }); entered != nil {
		err = entered
	}
	if err != nil {
		return nil, fmt.Errorf("open udp socket in %s: %w", ns.name, err)
	}
	return &Socket{conn: conn, opts: opts}, nil
}

// buffers are for answers. A new one for each query would cost a test more CPU in garbage collection than its queries.
var buffers = sync.Pool{New: func() any { return new([dns.MaxMsgSize]byte) }}

// Ask queries a server and waits for its answer. It ignores answers to earlier queries.
func (s *Socket) Ask(server netip.AddrPort, name string, qtype uint16) (*Answer, error) {
	m := question(name, qtype, s.opts)
	raw, err := m.Pack()
	if err != nil {
		return nil, fmt.Errorf("pack question for %s: %w", name, err)
	}
	start := time.Now()
	_ = s.conn.SetDeadline(start.Add(s.opts.timeout()))
	if _, err := s.conn.WriteToUDPAddrPort(raw, server); err != nil {
		return nil, fmt.Errorf("ask %s for %s over udp: %w", server, name, err)
	}
	buf := buffers.Get().(*[dns.MaxMsgSize]byte)
	defer buffers.Put(buf)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf[:])
		if err != nil {
			return nil, fmt.Errorf("no answer from %s for %s over udp: %w", server, name, err)
		}
		a, err := parseAnswer(buf[:n], from)
		if err != nil {
			return nil, err
		}
		if a.Msg.Id != m.Id {
			continue
		}
		if a.From != server {
			return nil, &WrongSourceError{Asked: server, Came: a.From}
		}
		a.Took = time.Since(start)
		return a, nil
	}
}

// Close closes the socket.
func (s *Socket) Close() { _ = s.conn.Close() }

// Conn is a connection to one server, kept open: a connected UDP socket (the kernel then drops answers from other
// addresses, and reports ICMP errors) or a TCP connection, whose queries may be pipelined. Not for concurrent use.
type Conn struct {
	conn    *dns.Conn
	network string
	server  netip.AddrPort
	opts    AskOptions
	lastID  uint16 // message IDs are counted, because random ones would collide in a long pipeline
}

// Dial connects from ns. The caller closes the Conn.
func Dial(ns *NetNS, network string, server netip.AddrPort, opts AskOptions) (*Conn, error) {
	dialer := net.Dialer{Timeout: opts.timeout()}
	if opts.Source.IsValid() || opts.Source.Port() != 0 {
		local := opts.Source
		if !local.Addr().IsValid() {
			local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
			if server.Addr().Is4() {
				local = netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port())
			}
		}
		dialer.LocalAddr = net.UDPAddrFromAddrPort(local)
		if network == "tcp" {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		}
	}
	var conn net.Conn
	var err error
	// The background context keeps the dial on this goroutine's thread, which is the one in the namespace.
	if entered := ns.enter(func() { conn, err = dialer.DialContext(context.Background(), family(network, server), server.String()) }); entered != nil {
		err = entered
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s over %s from %s: %w", server, network, ns.name, err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && opts.Abort {
		_ = tcp.SetLinger(0)
	}
	return &Conn{conn: &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}, network: network, server: server, opts: opts}, nil
}

// Ask sends a query and waits for its answer. It ignores late answers to earlier queries.
func (c *Conn) Ask(name string, qtype uint16) (*Answer, error) {
	return c.exchange(c.question(name, qtype))
}

func (c *Conn) question(name string, qtype uint16) *dns.Msg {
	c.lastID++
	m := question(name, qtype, c.opts)
	m.Id = c.lastID
	return m
}

func (c *Conn) exchange(m *dns.Msg) (*Answer, error) {
	start := time.Now()
	if err := c.write(m); err != nil {
		return nil, err
	}
	for {
		a, err := c.read(start.Add(c.opts.timeout()))
		if err != nil {
			return nil, fmt.Errorf("%w (asked for %s)", err, m.Question[0].Name)
		}
		if a.Msg.Id == m.Id {
			a.Took = time.Since(start)
			return a, nil
		}
	}
}

// Send sends a query without waiting for the answer. Receive returns the answer, which has the same ID.
func (c *Conn) Send(name string, qtype uint16) (id uint16, err error) {
	m := c.question(name, qtype)
	return m.Id, c.write(m)
}

// Receive waits for the next answer to any of the queries.
func (c *Conn) Receive() (*Answer, error) { return c.read(time.Now().Add(c.opts.timeout())) }

// Pipeline sends a query for each name before it reads the first answer, and returns the answers in the names' order.
func (c *Conn) Pipeline(qtype uint16, names ...string) ([]*Answer, error) {
	at := map[uint16]int{}
	for i, name := range names {
		id, err := c.Send(name, qtype)
		if err != nil {
			return nil, err
		}
		at[id] = i
	}
	answers := make([]*Answer, len(names))
	for len(at) > 0 {
		a, err := c.Receive()
		if err != nil {
			return answers, fmt.Errorf("%d of %d answers missing: %w", len(at), len(names), err)
		}
		if i, ok := at[a.Msg.Id]; ok {
			answers[i] = a
			delete(at, a.Msg.Id)
		}
	}
	return answers, nil
}

func (c *Conn) write(m *dns.Msg) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.opts.timeout()))
	if err := c.conn.WriteMsg(m); err != nil {
		return fmt.Errorf("ask %s over %s: %w", c.server, c.network, err)
	}
	return nil
}

func (c *Conn) read(deadline time.Time) (*Answer, error) {
	_ = c.conn.SetReadDeadline(deadline)
	raw, err := c.conn.ReadMsgHeader(nil)
	if err != nil {
		return nil, fmt.Errorf("no answer from %s over %s: %w", c.server, c.network, err)
	}
	return parseAnswer(raw, c.server)
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.conn.Close() }
