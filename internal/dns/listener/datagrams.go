package listener

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// Sizes of what is read.
const (
	maxQuery  = dns.MinMsgSize // the DNS library's default; of a longer query only this much is read, so it is invalid
	batchSize = 32             // datagrams in one system call
)

// datagrams reads a UDP socket and answers its queries. One system call reads up to batchSize queries, and another sends the fast path's
// answers to them. Workers send the other answers one by one.
// The socket is bound to one address, so answers have the right source address. Each answer goes to the socket address from which its
// query came, with an IPv6 scope if there was one.
//
// Only one goroutine uses it, except that workers use p, raw, inWork and room.
type datagrams struct {
	p      *point
	raw    syscall.RawConn
	inWork sync.WaitGroup // queries that workers run through the plugin chain

	in      packets
	buffers [batchSize][maxQuery]byte
	read    func(fd uintptr) (done bool) // the method receive, bound once so that a read allocates nothing
	rounds  int                          // system calls since the socket was last empty
	got     int                          // number of datagrams that the last read returned
	err     error                        // of the last read
	failed  int                          // number of reads in a row that failed

	query   fastpath.Query
	answers [batchSize][]byte
	out     packets
	ready   int // number of answers in out that are not sent yet
	writer  writer
	room    room // the socket's send buffer; workers write to the socket too
}

// packet is struct mmsghdr (recvmmsg(2)).
type packet struct {
	header unix.Msghdr
	size   uint32
}

// packets are the arguments of one recvmmsg(2) or sendmmsg(2).
type packets struct {
	headers [batchSize]packet
	parts   [batchSize]unix.Iovec
	from    [batchSize]address
}

// address is a packet's socket address as the kernel reads and writes it. An IPv4 address (unix.RawSockaddrInet4) uses only a part of it.
type address unix.RawSockaddrInet6

func newDatagrams(p *point, conn *net.UDPConn) (*datagrams, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	d := &datagrams{p: p, raw: raw, room: room{dropped: &p.quota.dropped}}
	for i := range batchSize {
		d.in.parts[i].Base = &d.buffers[i][0]
		d.in.parts[i].SetLen(maxQuery)
		h := &d.in.headers[i].header
		h.Name, h.Namelen, h.Iov = d.in.from[i].bytes(), unix.SizeofSockaddrInet6, &d.in.parts[i]
		h.SetIovlen(1)
		h = &d.out.headers[i].header
		h.Iov = &d.out.parts[i]
		h.SetIovlen(1)
	}
	d.read = d.receive
	d.writer.open(raw, &d.room)
	return d, nil
}

func (a *address) bytes() *byte { return (*byte)(unsafe.Pointer(a)) }

// rawReads: as long as the socket is not empty, one of so many reads is a system call through the Go runtime, and the others are raw system
// calls. The runtime wants to know of system calls, so that it can run other goroutines while one blocks. These reads never block, and each
// report wakes the runtime's monitor (sysmon), which then polls about every 20 µs: at 1,000 queries a second that causes three of four
// context switches. But the monitor also preempts goroutines that have run for 10 ms, so a goroutine that always finds queries must wake it
// now and then.
const rawReads = 16

// receive reads up to batchSize datagrams that wait in the socket. If there are none, it returns false, and the runtime calls it again when
// some arrive.
func (d *datagrams) receive(fd uintptr) (done bool) {
	for {
		call := unix.RawSyscall6
		if d.rounds++; d.rounds%rawReads == 0 {
			call = unix.Syscall6
		}
		n, _, errno := call(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&d.in.headers[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			d.got, d.err, d.failed = int(n), nil, 0
			return true
		case unix.EAGAIN:
			d.rounds, d.failed = 0, 0
			return false
		case unix.EINTR:
			continue
		}
		d.got, d.err = 0, errno
		d.failed++
		return true
	}
}

// maxFailures is the number of failures in a row after which a socket counts as dead: of reads over UDP, a millisecond apart, or of
// attempts to accept a TCP connection, acceptRetry apart (but not because of a shortage of resources).
const maxFailures = 1000

// serve reads and answers queries until the point ends; it returns an error if the socket is dead. It returns only after the workers have
// finished all queries.
func (d *datagrams) serve() error {
	defer d.inWork.Wait()
	for {
		if !d.p.pauser.pass() {
			return nil
		}
		if d.p.quota.full() {
			<-time.After(fullPoll)
			continue
		}
		err := d.raw.Read(d.read)
		if err == nil {
			err = d.err
		}
		switch {
		case err == nil:
			d.serveBatch(d.got)
		case errors.Is(err, os.ErrDeadlineExceeded): // a pause, or the end
		case d.failed > 0 && d.failed < maxFailures: // the socket had an error, for example by SOCK_DESTROY, but it is still bound
			<-time.After(fullPoll)
		default:
			return err
		}
	}
}

// serveBatch answers those of n datagrams that the fast path can answer, and passes the others to the plugin chain.
func (d *datagrams) serveBatch(n int) {
	var left uint64 // bit i: the plugin chain has to answer datagram i
	c := d.p.enter()
	if c.first == nil {
		left = 1<<n - 1
	} else {
		d.query.Received = time.Now()
		for i := range n {
			d.query.Wire, d.query.Client = d.datagram(i), d.in.from[i].client()
			answer, ok := d.p.answerFast(c.first, d.answers[i][:0], &d.query)
			if !ok {
				left |= 1 << i
				continue
			}
			if d.answers[i] = answer; len(answer) > 0 {
				d.reply(i)
			}
		}
	}
	c.leave()
	_ = d.writer.write(d.out.headers[:d.ready]) // an answer that cannot be sent is dropped, as UDP allows
	d.ready = 0
	for i := range n {
		if left&(1<<i) != 0 {
			d.hand(i)
		}
		d.in.headers[i].header.Namelen = unix.SizeofSockaddrInet6 // the kernel has overwritten it with the client's address length
	}
}

// datagram returns the bytes of the batch's datagram i, at most maxQuery.
func (d *datagrams) datagram(i int) []byte {
	return d.buffers[i][:min(d.in.headers[i].size, maxQuery)]
}

// reply prepares the answer to datagram i of the batch for sending.
func (d *datagrams) reply(i int) {
	h := &d.out.headers[d.ready].header
	h.Name, h.Namelen = d.in.from[i].bytes(), d.in.headers[i].header.Namelen
	d.out.parts[d.ready].Base = &d.answers[i][0]
	d.out.parts[d.ready].SetLen(len(d.answers[i]))
	d.ready++
}

// hand passes datagram i of the batch to a worker. It waits while all slots are taken.
func (d *datagrams) hand(i int) {
	m := d.datagram(i)
	if len(m) < msg.HeaderSize {
		return // too short for a DNS header
	}
	for d.p.quota.full() {
		<-time.After(fullPoll)
	}
	src := d.in.from[i].client()
	if quota := d.p.quota; !quota.take(&quota.packets, src) {
		quota.dropped.Add(1)
		return
	}
	q := &datagram{of: d, source: src, to: d.in.from[i], toSize: d.in.headers[i].header.Namelen,
		question: append(make([]byte, 0, len(m)), m...)}
	d.inWork.Add(1)
	d.p.workers.do(q)
}

// client returns the client's address for per-client limits, as fairshare.Client does: without port, IPv4 mapping and scope.
func (a *address) client() netip.Addr {
	if a.Family == unix.AF_INET {
		return netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(a)).Addr)
	}
	return netip.AddrFrom16(a.Addr).Unmap()
}

// udp returns the address as a net.UDPAddr.
func (a *address) udp() *net.UDPAddr {
	port := (*[2]byte)(unsafe.Pointer(&a.Port)) // the port is at the same offset for IPv4 and IPv6, in network byte order
	out := &net.UDPAddr{IP: a.client().AsSlice(), Port: int(binary.BigEndian.Uint16(port[:]))}
	if a.Family == unix.AF_INET6 && a.Scope_id != 0 {
		out.Zone = strconv.FormatUint(uint64(a.Scope_id), 10)
	}
	return out
}

// writer sends packets. One goroutine uses it.
type writer struct {
	raw   syscall.RawConn
	room  *room                        // the state of the socket's send buffer
	send  func(fd uintptr) (done bool) // the method sendAll, bound once so that a write allocates nothing
	rest  []packet                     // the packets of this write that are not sent yet
	error error                        // of the last packet that could not be sent
}

func (w *writer) open(raw syscall.RawConn, r *room) { w.raw, w.room, w.send = raw, r, w.sendAll }

// write sends the packets. If one cannot be sent, it still sends the others, and returns the last error. It does not wait until a full
// socket has room.
func (w *writer) write(packets []packet) error {
	if len(packets) == 0 {
		return nil
	}
	w.rest, w.error = packets, nil
	if err := w.raw.Write(w.send); err != nil {
		return err // the socket is closed
	}
	return w.error
}

// sendAll sends the packets in rest. It always returns true, so that RawConn.Write does not wait for the socket.
func (w *writer) sendAll(fd uintptr) (done bool) {
	for len(w.rest) > 0 {
		if w.room.most > 0 {
			w.error, w.rest = w.room.send(fd, w.rest), nil
			break
		}
		n, errno := sendmmsg(fd, w.rest)
		switch errno {
		case 0:
			w.rest = w.rest[n:]
		case unix.EAGAIN:
			w.room.fill(fd)
		case unix.EINTR:
		default: // the error is the first packet's; the kernel reports another packet's only when that is the first
			w.error, w.rest = errno, w.rest[1:]
		}
	}
	return true
}

// sendmmsg calls sendmmsg(2) without blocking. It is a raw system call (see rawReads), which takes a fraction of a millisecond at most.
func sendmmsg(fd uintptr, packets []packet) (n int, err unix.Errno) {
	sent, _, err := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&packets[0])), uintptr(len(packets)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(sent), err
}

// datagram is a UDP query while the plugin chain answers it. It is the plugin chain's ResponseWriter.
type datagram struct {
	responsewriter.Base
	of       *datagrams
	source   netip.Addr
	question []byte
	to       address
	toSize   uint32
}

// serve runs the query through the plugin chain.
func (q *datagram) serve() {
	defer q.of.inWork.Done()
	defer q.of.p.quota.give(&q.of.p.quota.packets, q.source)
	q.Base = responsewriter.Base{Local: net.UDPAddrFromAddrPort(q.of.p.at), Remote: q.to.udp()}
	wire := q.question
	q.question = nil
	q.of.p.handle(q.source, q, wire)
}

// handle parses a message and runs it through the plugin chain. A message that is not a query is refused or ignored, as the DNS library's
// server does.
func (p *point) handle(source netip.Addr, w dns.ResponseWriter, wire []byte) {
	r := new(dns.Msg)
	head := r.Unpack(wire[:msg.HeaderSize]) // the header alone is a message, too
	action := dns.DefaultMsgAcceptFunc(dns.Header(msg.ReadHeader(wire)))
	switch {
	case head != nil || action == dns.MsgIgnore:
		return // it may be a response, and replies to responses could go on forever
	case action == dns.MsgAccept:
		if r.Unpack(wire) == nil {
			p.answer(source, w, r)
			return
		}
	}
	opcode := r.Opcode
	r.SetRcodeFormatError(r)
	if action == dns.MsgRejectNotImplemented {
		r.Opcode, r.Rcode = opcode, dns.RcodeNotImplemented
	}
	r.Zero, r.Answer, r.Ns, r.Extra = false, nil, nil, nil
	_ = w.WriteMsg(r) // fails if the question section cannot be packed; then there is no answer
}

// WriteMsg sends an answer.
func (q *datagram) WriteMsg(m *dns.Msg) error { return responsewriter.Pack(q, m) }

// Write sends an answer's bytes.
func (q *datagram) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	part := unix.Iovec{Base: &b[0]}
	part.SetLen(len(b))
	one := []packet{{header: unix.Msghdr{Name: q.to.bytes(), Namelen: q.toSize, Iov: &part}}}
	one[0].header.SetIovlen(1)
	var w writer
	w.open(q.of.raw, &q.of.room)
	if err := w.write(one); err != nil {
		return 0, err
	}
	return len(b), nil
}
