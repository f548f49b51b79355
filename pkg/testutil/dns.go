package testutil

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// whoName is the name of a TXT record in the additional section of every answer that a DNSServer makes itself. The record has the server's
// name, the serial of the answer (an answer from a cache has an old one) and the client's address. Caches keep the record.
const whoName = "who.invalid."

// DNSConfig describes a scripted DNS server. Name and Listen must be set; the other fields may have their zero value.
type DNSConfig struct {
	Name    string           // the name that its answers contain, for example "KUBEDNS"
	Listen  []netip.AddrPort // addresses, each served over UDP and TCP
	Zones   []string         // zones whose names the server answers itself; none: it answers all names
	Forward netip.AddrPort   // the server for other names; invalid: queries for them are refused
	Records []string         // in zone file form; a name with records here gets no made-up ones
	Strict  bool             // names without records do not exist
	TTL     uint32           // default 30
	Quiet   bool             // count queries but keep no log of them, for load tests
	// Transparent sets IP_TRANSPARENT on the server's sockets.
	Transparent bool
}

// DNSServer is a DNS server inside this process whose sockets are in a namespace.
//
// A query for a name without a record gets an answer that the server makes up. Labels of the name may control it:
// size-3000 (a TXT record of 3000 bytes), rcode-2 (SERVFAIL), delay-200 (milliseconds), ttl-5 (seconds), drop (no answer).
type DNSServer struct {
	ns      *NetNS
	config  DNSConfig
	records map[string][]dns.RR // by lower case name
	serial  atomic.Int64
	count   struct{ udp, tcp atomic.Int64 }

	mu        sync.Mutex // guards the fields below
	behaviour Behaviour
	seen      []Question
	running   []*dns.Server
	ended     bool // the test is over

	answering sync.WaitGroup
}

// Behaviour changes how a server answers every query.
type Behaviour struct {
	Drop    bool          // send no answer, like a hung process
	Delay   time.Duration // pause before each answer
	Rcode   int           // if not 0, answer with only this response code
	Handler func(Question) *dns.Msg
	// Handler, if set, makes each answer, and Rcode has no effect. If Handler returns nil, the server sends no answer. DNSServer.Answer(q)
	// returns the usual answer.
}

// Question is one query as a server got it.
type Question struct {
	Name     string // as queried, with the final dot
	Type     uint16
	Network  string         // "udp" or "tcp"
	From, To netip.AddrPort // To is the address listened on
	Time     time.Time
	Msg      *dns.Msg
}

// Late delays the answer of a Handler that calls it by a duration, as a slow server does.
func (Question) Late(by time.Duration) { time.Sleep(by) }

// ServeDNS starts a server in ns. Cleanup stops the server.
func ServeDNS(t TB, ns *NetNS, config DNSConfig) *DNSServer {
	t.Helper()
	if config.TTL == 0 {
		config.TTL = 30
	}
	s := &DNSServer{ns: ns, config: config, records: map[string][]dns.RR{}}
	for _, text := range config.Records {
		rr, err := dns.NewRR(text)
		if err != nil || rr == nil {
			t.Fatalf("record %q of %s: %v", text, config.Name, err)
		}
		name := strings.ToLower(rr.Header().Name)
		s.records[name] = append(s.records[name], rr)
	}
	s.Start()
	t.Cleanup(s.end)
	return s
}

// end stops the server and waits for the answers that it is still making, because these need the namespace, which Cleanup removes next.
func (s *DNSServer) end() {
	s.Stop()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.answering.Wait()
}

// readBuffer is the size of a socket's receive buffer in bytes. It has room for a test's queries while a busy machine does not let the
// server read for some seconds. Linux's default of 208 KiB has room for 270 queries, and Linux drops further ones.
const readBuffer = 4 << 20

// control sets a socket's options before it is bound.
func (c DNSConfig) control(network, _ string, conn syscall.RawConn) (err error) {
	if strings.HasPrefix(network, "udp") {
		if err := conn.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, readBuffer) }); err != nil {
			return err
		}
	}
	if !c.Transparent {
		return nil
	}
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if strings.HasSuffix(network, "6") {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	if controlErr := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); controlErr != nil {
		return controlErr
	}
	return err
}

// Start binds the sockets and serves. It does nothing if the server is running.
func (s *DNSServer) Start() {
	s.ns.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return
	}
	for _, at := range s.config.Listen {
		var udp net.PacketConn
		var tcp net.Listener
		// A program that another test starts has copies of this process's sockets until it is executed, of closed ones, too: so long
		// their addresses are in use.
		Eventually(s.ns.t, func() (err error) {
			s.ns.Do(func() {
				lc := net.ListenConfig{Control: s.config.control}
				if udp, err = lc.ListenPacket(context.Background(), family("udp", at), at.String()); err == nil {
					if tcp, err = lc.Listen(context.Background(), family("tcp", at), at.String()); err != nil {
						_ = udp.Close()
					}
				}
			})
			return ErrorIf(err != nil, "%s: listen on %s in %s: %v", s.config.Name, at, s.ns.name, err)
		})
		for _, server := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
			network := "udp"
			if server.Listener != nil {
				network = "tcp"
			}
			server.UDPSize = dns.MaxMsgSize
			server.MaxTCPQueries = -1
			server.IdleTimeout = func() time.Duration { return time.Hour } // long connections are the client's to close
			server.ReadTimeout = time.Hour
			server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) { s.serve(w, m, network, at) })
			ready := make(chan struct{})
			server.NotifyStartedFunc = func() { close(ready) }
			go func() { _ = server.ActivateAndServe() }() // ended by Stop
			<-ready
			s.running = append(s.running, server)
		}
	}
}

// Stop closes the sockets, as the kernel does for a killed process.
func (s *DNSServer) Stop() {
	s.mu.Lock()
	running := s.running
	s.running = nil
	s.mu.Unlock()
	done, cancel := context.WithCancel(context.Background())
	cancel() // close at once, wait for no client
	for _, server := range running {
		_ = server.ShutdownContext(done)
	}
}

// family returns the network with the address's IP family, for example "udp4" for "udp". Otherwise a socket on the IPv6 wildcard address
// would get IPv4 packets, too.
func family(network string, at netip.AddrPort) string {
	if at.Addr().Is4() {
		return network + "4"
	}
	return network + "6"
}

// Behave changes the behaviour from the next query on; the zero Behaviour is the usual one.
func (s *DNSServer) Behave(b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behaviour = b
}

// Questions returns how many queries the server has received over "udp", "tcp" or ("") both, since the start or the last Forget.
func (s *DNSServer) Questions(network string) int {
	n := int64(0)
	if network != "tcp" {
		n += s.count.udp.Load()
	}
	if network != "udp" {
		n += s.count.tcp.Load()
	}
	return int(n)
}

// Asked returns how many queries for a name, of any type and case, are in the log. It is 0 with DNSConfig.Quiet, which keeps no log.
func (s *DNSServer) Asked(name string) int {
	n := 0
	for _, q := range s.Log() {
		if strings.EqualFold(q.Name, dns.Fqdn(name)) {
			n++
		}
	}
	return n
}

// Log returns the queries that the server has received, oldest first; none with DNSConfig.Quiet.
func (s *DNSServer) Log() []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Question(nil), s.seen...)
}

// Forget empties the log and the counters.
func (s *DNSServer) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
	s.count.udp.Store(0)
	s.count.tcp.Store(0)
}

func (s *DNSServer) serve(w dns.ResponseWriter, m *dns.Msg, network string, at netip.AddrPort) {
	if len(m.Question) != 1 {
		return
	}
	q := Question{Name: m.Question[0].Name, Type: m.Question[0].Qtype, Network: network, To: at, Time: time.Now(), Msg: m}
	if from, err := netip.ParseAddrPort(w.RemoteAddr().String()); err == nil {
		q.From = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	if network == "udp" {
		s.count.udp.Add(1)
	} else {
		s.count.tcp.Add(1)
	}
	s.mu.Lock()
	b := s.behaviour
	if !s.config.Quiet {
		s.seen = append(s.seen, q)
	}
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.answering.Add(1)
	defer s.answering.Done()
	s.mu.Unlock()

	if b.Drop {
		return
	}
	time.Sleep(b.Delay)
	var answer *dns.Msg
	switch {
	case b.Handler != nil:
		answer = b.Handler(q)
	case b.Rcode != 0:
		answer = new(dns.Msg).SetRcode(m, b.Rcode)
		answer.Extra = append(answer.Extra, s.who(q, s.config.TTL))
	default:
		answer = s.Answer(q)
	}
	if answer == nil {
		return
	}
	if network == "udp" {
		size := dns.MinMsgSize
		if opt := m.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		answer.Truncate(size)
	}
	_ = w.WriteMsg(answer) // the client may be gone
}

// Answer returns the server's usual answer to a query, or nil if it gives none.
func (s *DNSServer) Answer(q Question) *dns.Msg {
	name := strings.ToLower(q.Name)
	answer := new(dns.Msg).SetReply(q.Msg)
	answer.Compress = true
	answer.RecursionAvailable = true
	if opt := q.Msg.IsEdns0(); opt != nil {
		answer.SetEdns0(4096, opt.Do())
	}
	if !s.owns(name) {
		return s.forward(q, answer)
	}
	answer.Authoritative = true
	records, known := s.records[name]
	switch {
	case known:
		for _, rr := range records {
			if rr.Header().Rrtype == q.Type || rr.Header().Rrtype == dns.TypeCNAME {
				answer.Answer = append(answer.Answer, dns.Copy(rr))
			}
		}
		answer.Extra = append(answer.Extra, s.who(q, s.config.TTL))
	case s.config.Strict:
		answer.Rcode = dns.RcodeNameError
		answer.Extra = append(answer.Extra, s.who(q, s.config.TTL))
	case !s.makeUp(q, answer):
		return nil
	}
	if len(answer.Answer) == 0 && (answer.Rcode == dns.RcodeSuccess || answer.Rcode == dns.RcodeNameError) {
		answer.Ns = append(answer.Ns, s.soa(name))
	}
	return answer
}

func (s *DNSServer) owns(name string) bool {
	for _, zone := range s.config.Zones {
		if dns.IsSubDomain(dns.Fqdn(zone), name) {
			return true
		}
	}
	return len(s.config.Zones) == 0
}

func (s *DNSServer) forward(q Question, answer *dns.Msg) *dns.Msg {
	if s.config.Forward.IsValid() {
		if c, err := Dial(s.ns, "tcp", s.config.Forward, AskOptions{}); err == nil {
			defer c.Close()
			if got, err := c.exchange(q.Msg.Copy()); err == nil {
				got.Msg.Id = q.Msg.Id
				return got.Msg
			}
		}
		answer.Rcode = dns.RcodeServerFailure
	} else {
		answer.Rcode = dns.RcodeRefused
	}
	answer.Extra = append(answer.Extra, s.who(q, 0))
	return answer
}

// makeUp fills in the answer as the labels of the queried name control it, and reports whether there is an answer.
func (s *DNSServer) makeUp(q Question, answer *dns.Msg) bool {
	size, ttl := 0, s.config.TTL
	for _, label := range dns.SplitDomainName(strings.ToLower(q.Name)) {
		if label == "drop" {
			return false
		}
		order, value, _ := strings.Cut(label, "-")
		n, err := strconv.Atoi(value)
		if err != nil {
			continue
		}
		switch order {
		case "size":
			size = n
		case "rcode":
			answer.Rcode = n
		case "ttl":
			ttl = uint32(n)
		case "delay":
			time.Sleep(time.Duration(n) * time.Millisecond)
		}
	}
	who := s.who(q, ttl)
	answer.Extra = append(answer.Extra, who)
	if answer.Rcode != dns.RcodeSuccess {
		return true
	}
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Type, Class: dns.ClassINET, Ttl: ttl}
	serial, _ := strconv.Atoi(who.Txt[1])
	low := []byte{byte(serial >> 8), byte(serial)}
	switch {
	case size > 0 && q.Type == dns.TypeTXT:
		answer.Answer = append(answer.Answer, &dns.TXT{Hdr: header, Txt: bigText(s.config.Name, size)})
	case q.Type == dns.TypeTXT:
		answer.Answer = append(answer.Answer, &dns.TXT{Hdr: header, Txt: []string{s.config.Name}})
	case q.Type == dns.TypeA:
		answer.Answer = append(answer.Answer, &dns.A{Hdr: header, A: net.IPv4(198, 18, low[0], low[1])})
	case q.Type == dns.TypeAAAA:
		address := netip.MustParseAddr("2001:db8:1818::").As16()
		copy(address[14:], low)
		answer.Answer = append(answer.Answer, &dns.AAAA{Hdr: header, AAAA: address[:]})
	}
	return true
}

// bigText returns the strings of a TXT record of size bytes. The first string has the name of the server that answered.
func bigText(name string, size int) []string {
	text := []string{name}
	for left := size - len(name) - 1; left > 0; left -= 256 {
		text = append(text, strings.Repeat("x", max(0, min(255, left-1))))
	}
	return text
}

func (s *DNSServer) who(q Question, ttl uint32) *dns.TXT {
	return &dns.TXT{
		Hdr: dns.RR_Header{Name: whoName, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: ttl},
		Txt: []string{s.config.Name, strconv.FormatInt(s.serial.Add(1), 10), q.From.Addr().String()},
	}
}

func (s *DNSServer) soa(name string) dns.RR {
	zone := "."
	for _, z := range s.config.Zones {
		if dns.IsSubDomain(dns.Fqdn(z), name) {
			zone = dns.Fqdn(z)
		}
	}
	rr, err := dns.NewRR(fmt.Sprintf("%s %d IN SOA ns.invalid. root.invalid. 1 7200 1800 86400 %d", zone, s.config.TTL, s.config.TTL))
	if err != nil {
		panic(err) // the text above is constant but for names that were parsed before
	}
	return rr
}
