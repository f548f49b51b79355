package load

import (
	"encoding/binary"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// askPair looks names up as musl and Go's resolver do: A and AAAA at the same moment, from one socket that is made for the
// lookup, so that each lookup is a new connection to conntrack. The two queries are sent by two threads on two CPUs, which is
// what the race of kubernetes/kubernetes#56903 takes: two packets of a connection that conntrack does not know yet, in work at
// the same time. A lookup is right when both answers are, and took as long as the later one.
func askPair(s Stream, begun time.Time, d time.Duration) (*Book, error) {
	l := newLedger(s, begun, s.Total(d))
	var senders [2]chan *pair
	var sending, reading sync.WaitGroup
	for i, cpu := range twoCPUs() {
		senders[i] = make(chan *pair, s.Total(d)) // holds all: a pace must not wait for a sender
		sending.Go(func() { sendHalves(senders[i], i, cpu) })
	}
	late := s.pace(begun, d, func(i int) {
		p, err := newPair(l, i)
		if err != nil {
			l.send(i)
			l.fault(err.Error())
			return
		}
		l.send(i)
		reading.Go(p.read)
		senders[0] <- p
		senders[1] <- p
	})
	close(senders[0])
	close(senders[1])
	sending.Wait()
	reading.Wait() // bounded by the patience
	return l.book(late), nil
}

// pair is one lookup.
type pair struct {
	*ledger
	question int
	conn     *net.UDPConn
	wire     [2][]byte
	arrived  atomic.Int32 // senders that are about to send
}

// halves are the types of a lookup's queries; the position is also the query's id.
func halves() [2]uint16 { return [2]uint16{dns.TypeA, dns.TypeAAAA} }

func newPair(l *ledger, i int) (*pair, error) {
	p := &pair{ledger: l, question: i}
	for id, kind := range halves() {
		var err error
		if p.wire[id], err = question(uint16(id), l.stream.QName(i), kind); err != nil {
			return nil, err
		}
	}
	var err error
	p.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.stream.Server))
	return p, err
}

// meet is how long a sender waits for the other one.
const meet = time.Millisecond

func sendHalves(in <-chan *pair, half, cpu int) {
	runtime.LockOSThread() // never unlocked: the thread is bound to a CPU, and ends with the goroutine
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set) // without it the two still send, only less often at once
	}
	for p := range in {
		p.arrived.Add(1)
		for until := time.Now().Add(meet); p.arrived.Load() < 2 && time.Now().Before(until); {
		}
		if err := p.write(half); err != nil {
			p.fault("send: " + rootCause(err))
		}
	}
}

// write sends a half. Not by the connection's Write, which lets one writer in after the other: by the second one's turn the
// first packet has gone all its way.
func (p *pair) write(half int) error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) { _, sendErr = unix.Write(int(fd), p.wire[half]) }); err != nil {
		return err
	}
	return sendErr
}

// twoCPUs are two that this process may use, or -1 where there are no two.
func twoCPUs() [2]int {
	cpus := [2]int{-1, -1}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil || set.Count() < 2 {
		return cpus
	}
	found := 0
	for cpu := 0; found < 2; cpu++ {
		if set.IsSet(cpu) {
			cpus[found] = cpu
			found++
		}
	}
	return cpus
}

// read takes both answers in.
func (p *pair) read() {
	defer p.conn.Close()
	_ = p.conn.SetReadDeadline(p.deadline(p.question))
	self := localAddr(p.conn)
	outcome, reason := Cache, ""
	var have [2]bool
	buf := make([]byte, 4096)
	for !have[0] || !have[1] {
		n, err := p.conn.Read(buf)
		if err != nil {
			if why := rootCause(err); why != "timeout" {
				p.fault("receive: " + why)
			}
			return
		}
		id := 2
		if n >= 2 {
			id = int(binary.BigEndian.Uint16(buf))
		}
		if id > 1 {
			p.fault("answer to nothing")
			continue
		}
		have[id] = true
		o, why := judge(buf[:n], p.stream.QName(p.question), halves()[id], self)
		if rank(o) > rank(outcome) {
			outcome = o
		}
		if why != "" {
			reason = why
		}
	}
	p.answer(p.question, outcome, reason)
}

// rank orders outcomes of answers from good to bad.
func rank(o Outcome) int {
	return map[Outcome]int{Cache: 0, Direct: 1, Failed: 2, Wrong: 3}[o]
}
