package steering

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// traffic is what a pod asks over a while: at a pace, each question once, waiting a second for its answer.
type traffic struct {
	t     *testing.T
	p     *pod
	stop  func() // may be called again
	ended chan struct{}
	wg    sync.WaitGroup
	asked atomic.Int64
	lost  atomic.Int64

	mu      sync.Mutex // guards the fields below
	last    time.Time  // an answer of any of them
	gap     time.Duration
	slowest time.Duration // answer
	missed  []time.Time   // when those were asked that are lost
	errs    []error
}

const answerWait = time.Second

// startTraffic asks name over 20 UDP sockets, 10 connections that stay and one connection a question, at every address of
// a family. The three share the rate as 10 to 2 to 1.
func (n *node) startTraffic(p *pod, name string, perSecond int) *traffic {
	n.t.Helper()
	f := &traffic{t: n.t, p: p, ended: make(chan struct{}), last: time.Now()}
	f.stop = sync.OnceFunc(func() { close(f.ended) })
	defer n.t.Cleanup(func() { // of a test that failed; before the connections and the pod's netns go
		f.stop()
		f.wg.Wait()
	})
	unit := time.Second / time.Duration(max(perSecond/13, 1)) // between two questions of the rarest kind
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

// pace calls ask at each tick, until the traffic ends.
func (f *traffic) pace(every, first time.Duration, ask func() error) {
	f.wg.Go(func() {
		begin := time.NewTimer(first)
		defer begin.Stop()
		select {
		case <-f.ended:
			return
		case <-begin.C:
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			begun := time.Now()
			err := ask()
			f.asked.Add(1)
			f.mu.Lock()
			now := time.Now()
			if err == nil {
				f.gap = max(f.gap, now.Sub(f.last))
				f.last = now
				f.slowest = max(f.slowest, now.Sub(begun))
			} else {
				f.lost.Add(1)
				f.missed = append(f.missed, begun)
				f.errs = append(f.errs, fmt.Errorf("%s %w", now.Format("05.000"), err))
			}
			f.mu.Unlock()
			select {
			case <-f.ended:
				return
			case <-tick.C:
			}
		}
	})
}

// more waits until so many further questions were asked.
func (f *traffic) more(questions int64) {
	f.t.Helper()
	until := f.asked.Load() + questions
	testutil.Eventually(f.t, func() error {
		if asked := f.asked.Load(); asked < until {
			return fmt.Errorf("%d questions asked, %d awaited", asked, until)
		}
		return nil
	})
}

// end stops the traffic and says what became of it.
func (f *traffic) end() (asked, lost int64, gap time.Duration) {
	f.t.Helper()
	f.stop()
	f.wg.Wait()
	for i, err := range f.errs {
		if i == 20 {
			f.t.Logf("and %d more", len(f.errs)-i)
			break
		}
		f.t.Log(err)
	}
	return f.asked.Load(), f.lost.Load(), f.gap
}

// lostAround fails unless all that is lost was asked while a process was killed: it waited for that process, for as long as the machine let
// others wait, or came until the kernel had ended it (D-016). Without a fallback at once, losses go on for a lease's lifetime.
func (f *traffic) lostAround(killed, dead time.Time) {
	f.t.Helper()
	waited := min(max(slack/10, f.slowest), lifetime/2)
	for _, at := range f.missed {
		if at.Before(killed.Add(-waited)) || at.After(dead.Add(waited)) {
			f.t.Errorf("a question is lost that was asked %v after the kill, which took %v; others waited for up to %v", at.Sub(killed).Round(time.Millisecond),
				dead.Sub(killed).Round(time.Millisecond), waited.Round(time.Millisecond))
		}
	}
}

func (f *traffic) dial(network string, at netip.AddrPort) (conn net.Conn, err error) {
	f.p.Do(func() {
		d := net.Dialer{Timeout: answerWait}
		conn, err = d.Dial(network, at.String()) //nolint:noctx // bounded by the timeout
	})
	return conn, err
}

func (f *traffic) overUDP(at netip.AddrPort, name string) func() error {
	conn, err := f.dial("udp", at)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	buf := make([]byte, 1500)
	return func() error {
		q := new(dns.Msg).SetQuestion(name, dns.TypeA)
		wire, err := q.Pack()
		if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
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

// overTCP asks over one connection after the other, or over one that is opened anew when its server has ended it between
// two questions, as a resolver's connection is.
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
		err := c.ask(name)
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

func (c *tcpClient) ask(name string) error {
	c.asked++
	wire, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
		return err
	}
	timeout := time.NewTimer(answerWait)
	defer timeout.Stop()
	select {
	case m := <-c.answers:
		return rightAnswer(m)
	case <-c.ended:
		select {
		case m := <-c.answers: // the end came right behind it
			return rightAnswer(m)
		default:
			return errors.Join(errors.New("the connection ended"), c.err)
		}
	case <-timeout.C:
		return errors.New("no answer")
	}
}

func rightAnswer(m *dns.Msg) error {
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		return fmt.Errorf("wrong answer: %v", m)
	}
	return nil
}
