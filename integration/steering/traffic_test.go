package steering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// traffic is what a pod sends over a while: at a pace, each query once.
type traffic struct {
	t     *testing.T
	p     *pod
	wait  time.Duration // for each answer
	stop  func()        // may be called again
	ended chan struct{}
	wg    sync.WaitGroup
	asked atomic.Int64

	mu   sync.Mutex // guards the field below
	sent []sentQuery
}

// sentQuery is one query of a traffic.
type sentQuery struct {
	sent, done time.Time
	err        error // nil: it was answered
}

// answerWait is how long a query waits whose loss is counted, as resolvers with options timeout:1 do.
const answerWait = time.Second

// startTraffic sends queries for name over 20 UDP sockets, 10 connections that stay and one connection for each query, to every
// address of a family. The three share the rate as 10 to 2 to 1. Each query waits for its answer as long as a single attempt of any test.
func (n *node) startTraffic(p *pod, name string, perSecond int) *traffic {
	n.t.Helper()
	return n.startTrafficWaiting(p, name, perSecond, testutil.Attempt)
}

func (n *node) startTrafficWaiting(p *pod, name string, perSecond int, wait time.Duration) *traffic {
	n.t.Helper()
	f := n.newTraffic(p, wait)
	unit := time.Second / time.Duration(max(perSecond/13, 1)) // between two queries of the rarest kind
	at := n.ClusterDNS()
	for i := range 20 {
		f.pace(unit*2, time.Duration(i)*unit/10, f.overUDP(netip.AddrPortFrom(at[i%len(at)], 53), name))
	}
	for i := range 10 {
		f.pace(unit*5, time.Duration(i)*unit/2, f.overTCP(netip.AddrPortFrom(at[i%len(at)], 53), name, true))
	}
	f.pace(unit, 0, f.overTCP(netip.AddrPortFrom(at[0], 53), name, false))
	return f
}

// startUDP sends queries for the names in turn over ten sockets to one server.
func (n *node) startUDP(p *pod, at netip.AddrPort, perSecond int, names ...string) *traffic {
	n.t.Helper()
	f := n.newTraffic(p, testutil.Attempt)
	unit := time.Second / time.Duration(perSecond)
	for i := range 10 {
		f.pace(unit*10, time.Duration(i)*unit, f.overUDP(at, slices.Concat(names[i%len(names):], names[:i%len(names)])...))
	}
	return f
}

func (n *node) newTraffic(p *pod, wait time.Duration) *traffic {
	f := &traffic{t: n.t, p: p, wait: wait, ended: make(chan struct{})}
	f.stop = sync.OnceFunc(func() { close(f.ended) })
	return f
}

// pace calls ask at each tick, until the traffic ends: before ask's connection and the pod's netns go, also if the test failed.
func (f *traffic) pace(every, first time.Duration, ask func() error) {
	f.t.Cleanup(f.end)
	f.wg.Go(func() {
		tick := time.NewTicker(max(first, 1))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-f.ended:
				return
			case <-tick.C:
			}
			if i == 0 {
				tick.Reset(every)
			}
			begun := time.Now()
			err := ask()
			f.asked.Add(1)
			f.mu.Lock()
			f.sent = append(f.sent, sentQuery{begun, time.Now(), err})
			f.mu.Unlock()
		}
	})
}

// more waits until so many further queries were sent.
func (f *traffic) more(questions int64) {
	f.t.Helper()
	until := f.asked.Load() + questions
	testutil.Eventually(f.t, func() error {
		asked := f.asked.Load()
		return testutil.ErrorIf(asked < until, "%d questions asked, %d awaited", asked, until)
	})
}

func (f *traffic) end() {
	f.stop()
	f.wg.Wait()
}

// result stops the traffic and returns how many queries were sent, and how many of them had no right answer.
func (f *traffic) result() (asked, lost int64) {
	f.t.Helper()
	f.end()
	for _, q := range f.sent {
		if q.err == nil {
			continue
		}
		if lost++; lost <= 20 {
			f.t.Logf("%s %v", q.done.Format("05.000"), q.err)
		}
	}
	return f.asked.Load(), lost
}

// allAnswered stops the traffic and fails unless every query had its answer.
func (f *traffic) allAnswered() {
	f.t.Helper()
	if asked, lost := f.result(); lost > 0 || asked == 0 {
		f.t.Errorf("%d of %d queries had no answer", lost, asked)
	}
}

func (f *traffic) dial(network string, at netip.AddrPort) (*dns.Conn, error) {
	var conn net.Conn
	var err error
	f.p.Do(func() {
		d := net.Dialer{Timeout: f.wait}
		conn, err = d.Dial(network, at.String()) //nolint:noctx // bounded by the timeout
	})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", network, at, err)
	}
	return &dns.Conn{Conn: conn}, nil
}

func (f *traffic) overUDP(at netip.AddrPort, names ...string) func() error {
	conn, err := f.dial("udp", at)
	testutil.Must(f.t, err)
	f.t.Cleanup(func() { conn.Close() })
	next := 0
	return func() error {
		next++
		return wrap("udp "+at.String(), f.ask(conn, names[(next-1)%len(names)]))
	}
}

// overTCP sends queries over one connection after the other, or over one that is reopened when its server has ended it between
// two queries, as a resolver's connection is.
func (f *traffic) overTCP(at netip.AddrPort, name string, stays bool) func() error {
	var open *dns.Conn
	shut := func() {
		if open != nil {
			open.Close()
			open = nil
		}
	}
	f.t.Cleanup(shut)
	return func() (err error) {
		if open != nil && ended(open) {
			shut()
		}
		if open == nil {
			if open, err = f.dial("tcp", at); err != nil {
				return err
			}
		}
		if err = f.ask(open, name); err != nil || !stays {
			shut()
		}
		return wrap("tcp "+at.String(), err)
	}
}

// ended reports whether the other side has ended a connection.
func ended(c *dns.Conn) bool {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	size, peekErr := 0, err
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			size, _, peekErr = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		})
	}
	return err != nil || size <= 0 && !errors.Is(peekErr, unix.EAGAIN)
}

// ask sends a query and waits for its answer.
func (f *traffic) ask(c *dns.Conn, name string) error {
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	if err := errors.Join(c.SetDeadline(time.Now().Add(f.wait)), c.WriteMsg(q)); err != nil {
		return err
	}
	for {
		m, err := c.ReadMsg()
		if err != nil {
			return err
		}
		if m.Id == q.Id {
			return rightAnswer(m)
		}
	}
}

func rightAnswer(m *dns.Msg) error {
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return fmt.Errorf("wrong answer: %v", m)
	}
	return nil
}
