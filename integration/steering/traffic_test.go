package steering

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

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
	f.t.Cleanup(func() {
		f.stop()
		f.wg.Wait()
	})
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

// result stops the traffic and returns how many queries were sent, and how many of them had no right answer.
func (f *traffic) result() (asked, lost int64) {
	f.t.Helper()
	f.stop()
	f.wg.Wait()
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

func (f *traffic) dial(network string, at netip.AddrPort) (conn net.Conn, err error) {
	f.p.Do(func() {
		d := net.Dialer{Timeout: f.wait}
		conn, err = d.Dial(network, at.String()) //nolint:noctx // bounded by the timeout
	})
	return conn, err
}

func (f *traffic) overUDP(at netip.AddrPort, names ...string) func() error {
	conn, err := f.dial("udp", at)
	testutil.Must(f.t, err)
	f.t.Cleanup(func() { conn.Close() })
	buf := make([]byte, 1500)
	next := 0
	return func() error {
		q := new(dns.Msg).SetQuestion(names[next%len(names)], dns.TypeA)
		next++
		wire, err := q.Pack()
		if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(f.wait)); err != nil {
			return err
		}
		if _, err := conn.Write(wire); err != nil {
			return fmt.Errorf("udp %s: %w", at, err)
		}
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return fmt.Errorf("udp %s: %w", at, err)
			}
			if m := new(dns.Msg); m.Unpack(buf[:n]) == nil && m.Id == q.Id {
				return rightAnswer(m)
			}
		}
	}
}

// overTCP sends queries over one connection after the other, or over one that is reopened when its server has ended it between
// two queries, as a resolver's connection is.
func (f *traffic) overTCP(at netip.AddrPort, name string, stays bool) func() error {
	var open *tcpClient
	if stays {
		f.t.Cleanup(func() {
			if open != nil {
				open.conn.Close()
			}
		})
	}
	return func() error {
		c := open
		if c == nil || c.over() {
			conn, err := f.dial("tcp", at)
			if err != nil {
				return fmt.Errorf("tcp %s: %w", at, err)
			}
			c = newTCPClient(conn)
		}
		open = nil
		err := c.ask(name, f.wait)
		if err == nil && stays {
			open = c
		} else {
			c.conn.Close()
		}
		if err != nil {
			return fmt.Errorf("tcp %s, question %d: %w", at, c.asked, err)
		}
		return nil
	}
}

type tcpClient struct {
	conn    net.Conn
	asked   int
	answers chan *dns.Msg
	ended   chan struct{}
	err     error // once ended
}

func newTCPClient(conn net.Conn) *tcpClient {
	c := &tcpClient{conn: conn, answers: make(chan *dns.Msg, 1), ended: make(chan struct{})}
	go func() { // ends with the connection
		defer close(c.ended)
		for {
			var length [2]byte
			if _, c.err = io.ReadFull(conn, length[:]); c.err != nil {
				return
			}
			wire := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, c.err = io.ReadFull(conn, wire); c.err != nil {
				return
			}
			m := new(dns.Msg)
			if c.err = m.Unpack(wire); c.err != nil {
				return
			}
			c.answers <- m
		}
	}()
	return c
}

func (c *tcpClient) over() bool {
	select {
	case <-c.ended:
		c.conn.Close()
		return true
	default:
		return false
	}
}

// ask sends a query. The reader ends with the deadline.
func (c *tcpClient) ask(name string, wait time.Duration) error {
	c.asked++
	wire, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return err
	}
	if err := c.conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
		return err
	}
	select {
	case m := <-c.answers:
		return errors.Join(rightAnswer(m), c.conn.SetDeadline(time.Time{}))
	case <-c.ended:
		select {
		case m := <-c.answers: // the end came right behind it
			return rightAnswer(m)
		default:
			return errors.Join(errors.New("the connection ended"), c.err)
		}
	}
}

func rightAnswer(m *dns.Msg) error {
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return fmt.Errorf("wrong answer: %v", m)
	}
	return nil
}
