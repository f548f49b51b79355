package nodelocal_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// load asks from a pod at a steady pace, each question once.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	asked int
	lost  []string
}

// pace is how many questions each of the clients asks in a second.
const pace = 50

// startLoad asks at every address: over UDP on sockets that stay, and over a new TCP connection each time.
func (n *node) startLoad(from *testutil.NetNS, addresses ...netip.Addr) *load {
	n.t.Helper()
	l := &load{stop: make(chan struct{})}
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, 53)
		conn, err := testutil.Dial(from, "udp", at, testutil.AskOptions{Timeout: time.Second})
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(conn.Close)
		l.client(func() error { _, err := conn.Ask("load.default.svc.cluster.local.", dns.TypeA); return err })
		l.client(func() error {
			_, err := testutil.Ask(from, at, "load.default.svc.cluster.local.", dns.TypeA, "tcp", testutil.AskOptions{Timeout: time.Second, Abort: true})
			return err
		})
	}
	return l
}

func (l *load) client(ask func() error) {
	l.wg.Go(func() {
		tick := time.NewTicker(time.Second / pace)
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-tick.C:
			}
			err := ask()
			l.mu.Lock()
			l.asked++
			if err != nil {
				l.lost = append(l.lost, time.Now().Format("05.000 ")+err.Error())
			}
			l.mu.Unlock()
		}
	})
}

// phase waits for so many further questions, and tells how many of all since the last phase were lost.
func (l *load) phase(t *testing.T, name string, questions int) (asked, lost int) {
	t.Helper()
	l.mu.Lock()
	until := l.asked + questions
	l.mu.Unlock()
	testutil.Eventually(t, 2*patience, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.asked < until {
			return fmt.Errorf("%s: %d questions asked, %d awaited", name, l.asked, until)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, lost = l.asked, len(l.lost)
	for i, e := range l.lost {
		if i == 5 {
			t.Logf("%s: and %d more", name, lost-i)
			break
		}
		t.Logf("%s: lost: %s", name, e)
	}
	l.asked, l.lost = 0, nil
	t.Logf("%s: %d of %d questions lost", name, lost, asked)
	return asked, lost
}

func (l *load) end() { close(l.stop); l.wg.Wait() }

// The move as README tells it: NodeLocal DNSCache, then our image in its manifest, then back, under load. What the stock cache
// loses by its own end and start is its own; from our start to our end nothing is lost.
func TestMoveAndBack(t *testing.T) {
	for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
		t.Run(string(proxy), func(t *testing.T) {
			n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: proxy})
			pod := n.pod()
			stock := n.stock()
			testutil.Eventually(t, patience, func() error { return cached(pod.NetNS, local4, "udp") })
			n.each(pod.NetNS, "stock", cached, n.served()...)
			load := n.startLoad(pod.NetNS, n.served()...)
			defer load.end()
			if _, lost := load.phase(t, "stock serves", 200); lost > 0 {
				t.Errorf("the stock cache lost %d", lost)
			}

			// kubectl set image: the kubelet ends the old pod. node-cache takes its rules and link away, unless it is killed.
			stock.Kill()
			load.phase(t, "stock killed, its rules and link left behind", 100)
			p := n.agent()
			n.awaitLeases(p, n.served()...)
			load.phase(t, "ours starts", 100)
			n.each(pod.NetNS, "ours", cached, n.served()...)
			if _, lost := load.phase(t, "ours serves", 200); lost > 0 {
				t.Errorf("ours lost %d", lost)
			}
			p.Kill()
			if _, lost := load.phase(t, "ours killed", 200); lost > 4*2 { // a question of each client, twice over
				t.Errorf("a kill lost %d", lost)
			}
			n.each(pod.NetNS, "ours killed", direct, n.served()...)
			p = n.agent()
			n.awaitLeases(p, n.served()...)
			if _, lost := load.phase(t, "ours again", 200); lost > 0 {
				t.Errorf("a start lost %d", lost)
			}

			// kubectl rollout undo: ours is told to end, node-cache starts.
			if err := p.Terminate(patience); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
			if _, lost := load.phase(t, "ours ended", 200); lost > 0 {
				t.Errorf("the end lost %d", lost)
			}
			if _, err := n.Host.Netlink().LinkByName(nodelocal.Link); err == nil {
				t.Error("the link is still there, without -skipteardown")
			}
			stock = n.stock()
			testutil.Eventually(t, patience, func() error {
				for _, a := range n.served() {
					for _, network := range []string{"udp", "tcp"} {
						if err := cached(pod.NetNS, a, network); err != nil {
							return err
						}
					}
				}
				return nil
			})
			load.phase(t, "stock again", 200)
			n.each(pod.NetNS, "stock again", cached, n.served()...)
			// And what it did not have before: our switch stays, and hands what it does not answer to kube-dns.
			stock.Kill()
			if _, lost := load.phase(t, "stock killed, our switch left behind", 200); lost > 4*2 {
				t.Errorf("beside our switch a kill of the stock cache lost %d", lost)
			}
			n.each(pod.NetNS, "stock killed", direct, n.served()...)

			// neardns-agent cleanup: nothing is left but what node-cache had.
			cleanup := n.container("neardns-agent", "cleanup", "--link", nodelocal.Link)
			if err := cleanup.Wait(); err != nil {
				t.Fatalf("cleanup: %v\n%s", err, cleanup.Output())
			}
			if out := n.Host.Run("nft", "list", "tables"); strings.Contains(out, "neardns") {
				t.Errorf("tables after cleanup: %s", out)
			}
		})
	}
}
