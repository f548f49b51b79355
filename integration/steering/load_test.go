package steering

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// load is a paced client: each query has its own time, whatever became of those before it, and is queried once.
type load struct {
	from    *testutil.NetNS
	server  netip.AddrPort
	qps     int
	sockets int
	names   []string // queried in turn; TTLs are the names' own affair
}

// loadTimeout is when a query counts as lost: what a resolver with options timeout:1 waits.
const loadTimeout = time.Second

// outcome is what became of a load.
type outcome struct {
	sent, answered, wrong int
	gap                   time.Duration   // the longest time without any answer
	took                  []time.Duration // sorted
	unanswered            []time.Time     // when those were due that are lost
}

func (o outcome) lost() int { return o.sent - o.answered }

func (o outcome) percentile(p int) time.Duration {
	if len(o.took) == 0 {
		return 0
	}
	return o.took[min(len(o.took)*p/100, len(o.took)-1)]
}

func (o outcome) String() string {
	return fmt.Sprintf("sent %d, lost %d, wrong %d, longest gap %v, p50 %v, p99 %v", o.sent, o.lost(), o.wrong,
		o.gap.Round(time.Millisecond), o.percentile(50).Round(10*time.Microsecond), o.percentile(99).Round(10*time.Microsecond))
}

// lane is one socket of a load.
type lane struct {
	conn *net.UDPConn
	mu   sync.Mutex // guards the fields below
	due  map[uint16]time.Time
	got  outcome
	last []time.Time // of the answers
}

// dialUDP opens a connected socket in a namespace.
func dialUDP(t testing.TB, ns *testutil.NetNS, server netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	var err error
	ns.Do(func() { conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server)) })
	testutil.Must(t, err)
	return conn
}

// run sends queries until stop is closed, and then waits for the answers that are due.
func (l load) run(t testing.TB, stop <-chan struct{}) outcome {
	t.Helper()
	lanes := make([]*lane, l.sockets)
	var senders, readers sync.WaitGroup
	begun := time.Now()
	for i := range lanes {
		c := &lane{conn: dialUDP(t, l.from, l.server), due: map[uint16]time.Time{}}
		lanes[i] = c
		readers.Go(c.read)
		senders.Go(func() { l.send(c, i, begun, stop) })
	}
	senders.Wait()
	for _, c := range lanes {
		c.conn.SetReadDeadline(time.Now().Add(loadTimeout))
	}
	readers.Wait()
	var out outcome
	var answers []time.Time
	for _, c := range lanes {
		c.conn.Close()
		out.sent += c.got.sent
		out.answered += c.got.answered
		out.wrong += c.got.wrong
		out.took = append(out.took, c.got.took...)
		answers = append(answers, c.last...)
		out.unanswered = slices.AppendSeq(out.unanswered, maps.Values(c.due))
	}
	slices.Sort(out.took)
	slices.SortFunc(answers, time.Time.Compare)
	for i := 1; i < len(answers); i++ {
		out.gap = max(out.gap, answers[i].Sub(answers[i-1]))
	}
	return out
}

func (l load) send(c *lane, i int, begun time.Time, stop <-chan struct{}) {
	every := time.Second * time.Duration(l.sockets) / time.Duration(l.qps)
	for n := 0; ; n++ {
		at := begun.Add(time.Duration(i)*every/time.Duration(l.sockets) + time.Duration(n)*every)
		select {
		case <-stop:
			return
		case <-time.After(time.Until(at)):
		}
		wire := packed(l.names[(n*l.sockets+i)%len(l.names)], uint16(n))
		c.mu.Lock()
		c.due[uint16(n)] = at
		c.got.sent++
		c.mu.Unlock()
		_, _ = c.conn.Write(wire) // refused is lost
	}
}

func (c *lane) read() {
	buf := make([]byte, 4096)
	for {
		n, err := c.conn.Read(buf)
		if os.IsTimeout(err) {
			return
		}
		if err != nil || n < 12 {
			continue // an ICMP error of an earlier query
		}
		now := time.Now()
		id, rcode, answers := binary.BigEndian.Uint16(buf), buf[3]&15, binary.BigEndian.Uint16(buf[6:])
		c.mu.Lock()
		if at, ok := c.due[id]; ok && now.Sub(at) <= loadTimeout {
			delete(c.due, id)
			c.got.answered++
			c.got.took = append(c.got.took, now.Sub(at))
			c.last = append(c.last, now)
			if rcode != 0 || answers == 0 {
				c.got.wrong++
			}
		}
		c.mu.Unlock()
	}
}

// packed is a query for an address.
func packed(name string, id uint16) []byte {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	m.Id = id
	wire, err := m.Pack()
	if err != nil {
		panic(err) // the tests' own names
	}
	return wire
}

// flood sends at most qps queries per second for names that no client queried before, until end is called, or the test ends. It reads no
// more of the answers than it has to.
func flood(t testing.TB, from *testutil.NetNS, server netip.AddrPort, label string, qps int) (end func()) {
	t.Helper()
	const sockets, perSecond = 4, 100
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range sockets {
		conn := dialUDP(t, from, server)
		wg.Go(func() {
			pace := time.NewTicker(time.Second / perSecond)
			defer pace.Stop()
			wire := packed(strings.Repeat("x", 10)+"."+label, 0)
			for n, due := 0, 0; ; {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				for due += qps / sockets / perSecond; n < due; n++ {
					// The name's first label: x, the socket, a number.
					copy(wire[13:], strconv.AppendInt([]byte{'x', byte('a' + i)}, int64(10_000_000+n), 10))
					_, _ = conn.Write(wire)
				}
			}
		})
		wg.Go(func() {
			for buf := make([]byte, 512); ; {
				if _, err := conn.Read(buf); errors.Is(err, net.ErrClosed) {
					return
				}
			}
		})
		go func() { // wakes the reader at the end
			<-stop
			conn.Close()
		}()
	}
	end = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(end)
	return end
}

// memory reads a process's memory in bytes: "VmRSS" is what it has, "VmHWM" the most it had.
func memory(t testing.TB, pid int, field string) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	testutil.Must(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			testutil.Must(t, err)
			return kb << 10
		}
	}
	t.Fatalf("no %s in the status of process %d", field, pid)
	return 0
}

// awaitMetric waits until a metric of the agent has a value.
func (n *node) awaitMetric(series string, want float64) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		got := n.metric(series)
		return testutil.ErrorIf(got != want, "%s is %v, want %v", series, got, want)
	})
}

// fetch gets a page of the agent's.
func (n *node) fetch(path string) string {
	n.t.Helper()
	page, err := n.Host.Get("http://127.0.0.1:9253" + path)
	testutil.Must(n.t, err)
	return page
}

// metric reads the agent's metrics.
func (n *node) metric(series string) float64 {
	n.t.Helper()
	for line := range strings.Lines(n.fetch("/metrics")) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			testutil.Must(n.t, err)
			return v
		}
	}
	return 0
}
