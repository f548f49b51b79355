package steering

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// fetch gets a page by a connection made on the calling thread, whose namespace is the one that counts.
func fetch(t testing.TB, url string) string {
	t.Helper()
	conn, err := net.Dial("tcp", url[len("http://"):len("http://")+len("127.0.0.1:9253")])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	testutil.Must(t, req.Write(conn))
	body, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// hits are names that a test keeps in the cache.
func hits(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("ttl-600.hit%d.svc.cluster.local", i))
	}
	return names
}

// warm queries each name until all are answered.
func (n *node) warm(p *pod, names []string) {
	n.t.Helper()
	const workers = 16
	var wg sync.WaitGroup
	for i := range workers {
		conn := dialUDP(n.t, p.NetNS, n.all()[0].server())
		defer conn.Close()
		wg.Go(func() {
			buf := make([]byte, 512)
			for k := i; k < len(names); k += workers {
				for tries := 0; tries < 10; tries++ {
					_, _ = conn.Write(packed(names[k], uint16(k)))
					conn.SetReadDeadline(time.Now().Add(testutil.Attempt))
					if got, err := conn.Read(buf); err == nil && got > 12 && buf[3]&15 != 2 {
						break
					}
				}
			}
		})
	}
	wg.Wait()
}

// denials are names that there are not.
func denials(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("rcode-3.ttl-600.no%d.svc.cluster.local", i))
	}
	return names
}

// TestFlood has another pod's names answered from the cache during the flood, whose losses TestTimingFlood counts.
func TestFlood(t *testing.T) {
	flooded(t, 4000, func(n *node, quiet *pod, names []string) {
		for i := range 50 {
			testutil.Eventually(t, func() error {
				_, err := quiet.client().ask(n.all()[0], names[i], time.Second)
				return err
			})
		}
	})
}

// flooded lets one pod query qps random names a second while the upstream takes five seconds for each. It calls f with another pod and
// names in the cache as soon as the flood is shed, and fails unless the agent's memory and misses stayed bounded: without bounds it would
// hold the queries of five seconds, 20,000 and more.
func flooded(t *testing.T, qps int, f func(n *node, quiet *pod, names []string)) {
	t.Helper()
	n := newNode(t, setup{})
	noisy, quiet := n.addPod(nil), n.addPod(nil)
	n.startAgent()
	names := hits(2000)
	n.warm(quiet, names)
	n.warm(quiet, denials(2000))
	before := memory(t, n.agent.PID(), "VmHWM")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(end)
	wg.Go(func() { flood(t, noisy.NetNS, n.all()[0].server(), "delay-5000.svc.cluster.local", qps, stop) })
	testutil.Eventually(t, func() error {
		if n.metric(`neardns_misses_shed_total{reason="share"}`) == 0 {
			return errors.New("one pod's flood is not shed by its share")
		}
		return nil
	})
	f(n, quiet, names)
	end()
	after := memory(t, n.agent.PID(), "VmHWM")
	t.Logf("memory at most: full cache %d MiB, flood %d MiB; misses shed by share: %v; datagrams dropped: %v", before>>20, after>>20,
		n.metric(`neardns_misses_shed_total{reason="share"}`), n.metric("neardns_udp_dropped_total"))
	if after > 3*before {
		t.Errorf("memory went from %d to %d MiB", before>>20, after>>20)
	}
	if full := n.metric(`neardns_misses_shed_total{reason="full"}`); full > 0 {
		t.Errorf("one pod's flood filled the gate: %v misses", full)
	}
	testutil.Eventually(t, func() error {
		if v := n.metric("neardns_misses_in_flight"); v > 0 {
			return fmt.Errorf("%v misses in flight", v)
		}
		return nil
	})
}

// TestConnectionFlood lets one pod open 2,000 connections, idle ones and such that send a byte, and hold them: another
// pod's connections are served, old and new, and what the flood holds of the agent is bounded.
func TestConnectionFlood(t *testing.T) {
	const connections, limit = 2000, 1024
	n := newNode(t, setup{})
	noisy, quiet := n.addPod(nil), n.addPod(nil)
	n.startAgent()
	at := target{n.all()[0].addr, "tcp"}
	old := n.dial(quiet, at)
	ask := func(when string, c *testutil.Conn) {
		t.Helper()
		if _, err := c.Ask(hits(1)[0], dns.TypeA); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	ask("before", old)
	before := memory(t, n.agent.PID(), "VmRSS")
	refused := 0
	noisy.Do(func() {
		d := net.Dialer{Timeout: testutil.Attempt}
		for i := range connections {
			conn, err := d.Dial("tcp", at.server().String())
			if err != nil {
				refused++
				continue
			}
			t.Cleanup(func() { conn.Close() })
			if i%2 == 0 {
				_, _ = conn.Write([]byte{0}) // half of a length
			}
			if i%200 == 0 {
				ask("a connection from before the flood", old) // in use, so that it is not closed for being idle on a slow machine
			}
		}
	})
	ask("a connection from before the flood", old)
	ask("a new one", n.dial(quiet, at))
	open, shed := n.metric("neardns_tcp_connections"), n.metric(`neardns_tcp_connections_shed_total{reason="idle"}`)
	after := memory(t, n.agent.PID(), "VmRSS")
	t.Logf("%d opened, %d refused, %v closed while idle, %v open; memory %d MiB, before %d MiB", connections, refused, shed, open, after>>20, before>>20)
	if open > limit/2+10 || shed == 0 {
		t.Errorf("%v connections are open and %v were closed, want half of %d for one pod", open, shed, limit)
	}
	if after > before+(32<<20) {
		t.Errorf("memory went from %d to %d MiB", before>>20, after>>20)
	}
	if lost := n.metric(`neardns_lease_lost_total{reason="refused"}`) + n.metric(`neardns_lease_lost_total{reason="network"}`); lost > 0 {
		t.Errorf("the prober was refused: %v leases were lost", lost)
	}
}
