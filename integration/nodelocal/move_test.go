package nodelocal_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// load sends queries from a pod at a steady pace, each query once.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu  sync.Mutex // guards the field below and what it points to
	now *asked
}

// asked is the queries that were sent in one phase, however late it is known that one is lost.
type asked struct {
	ended, open int
	lost        []string
}

// pace is how many queries each of the clients sends in a second.
const pace = 50

// answerWait is how long a client waits for an answer, as resolvers do: a busy machine may stand still for more than a second.
const answerWait = 3 * time.Second

// startLoad sends queries at every address: over UDP on sockets that stay, and over a new TCP connection each time.
func (n *node) startLoad(from *testutil.NetNS, addresses ...netip.Addr) *load {
	n.t.Helper()
	l := &load{stop: make(chan struct{}), now: new(asked)}
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, 53)
		conn, err := testutil.Dial(from, "udp", at, testutil.AskOptions{Timeout: answerWait})
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(conn.Close)
		l.client(func() error { _, err := conn.Ask("load.default.svc.cluster.local.", dns.TypeA); return err })
		l.client(func() error {
			_, err := testutil.Ask(from, at, "load.default.svc.cluster.local.", dns.TypeA, "tcp", testutil.AskOptions{Timeout: answerWait, Abort: true})
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
			l.mu.Lock()
			phase := l.now
			phase.open++
			l.mu.Unlock()
			err := ask()
			l.mu.Lock()
			phase.open--
			phase.ended++
			if err != nil {
				phase.lost = append(phase.lost, time.Now().Format("05.000 ")+err.Error())
			}
			l.mu.Unlock()
		}
	})
}

// phase waits for so many further queries, and reports how many of all that were queried since the last phase were lost.
func (l *load) phase(t *testing.T, name string, questions int) (ended, lost int) {
	t.Helper()
	l.mu.Lock()
	phase := l.now
	until := phase.ended + questions
	l.mu.Unlock()
	testutil.Eventually(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if phase.ended < until {
			return fmt.Errorf("%s: %d questions asked, %d awaited", name, phase.ended, until)
		}
		l.now = new(asked)
		return nil
	})
	testutil.Eventually(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if phase.open > 0 {
			return fmt.Errorf("%s: %d questions have no end", name, phase.open)
		}
		return nil
	})
	for i, e := range phase.lost {
		if i == 5 {
			t.Logf("%s: and %d more", name, len(phase.lost)-i)
			break
		}
		t.Logf("%s: lost: %s", name, e)
	}
	t.Logf("%s: %d of %d questions lost", name, len(phase.lost), phase.ended)
	return phase.ended, len(phase.lost)
}

func (l *load) end() { close(l.stop); l.wg.Wait() }

// guide is the commands of docs/move-from-nodelocal.md, in their order, which the test goes through.
type guide struct {
	t     *testing.T
	steps []string
}

func readGuide(t *testing.T) *guide {
	t.Helper()
	text, err := os.ReadFile("../../docs/move-from-nodelocal.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Move and roll back\n")
	section, _, _ = strings.Cut(section, "\n## ")
	g := &guide{t: t}
	fenced := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced:
			g.steps = append(g.steps, line)
		}
	}
	return g
}

// next holds that a command is the section's next, and returns its words.
func (g *guide) next(begins string) []string {
	g.t.Helper()
	if len(g.steps) == 0 || !strings.HasPrefix(g.steps[0], begins) {
		g.t.Fatalf("the page's next step is not %q but %q", begins, g.steps)
	}
	words := strings.Fields(g.steps[0])
	g.steps = g.steps[1:]
	return words
}

// The move as docs/move-from-nodelocal.md tells it: NodeLocal DNSCache, then our image in its manifest, then back, under load. What the
// stock cache loses by its own end and start is its own; from our start to our end nothing is lost.
func TestMoveAndBack(t *testing.T) {
	for _, c := range append([]cell{{testutil.IPv4, testutil.IPTables, ""}, {testutil.IPv4, testutil.NFTables, ""}}, onIPTables(testutil.IPv4)...) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			pod, guide := n.pod(), readGuide(t)
			guide.next("kubectl -n kube-system get ")
			stock := n.stock()
			testutil.Eventually(t, func() error { return cached(pod.NetNS, local4, "udp") })
			n.each(pod.NetNS, "stock", cached, n.served()...)
			load := n.startLoad(pod.NetNS, n.served()...)
			defer load.end()
			if _, lost := load.phase(t, "stock serves", 200); lost > 0 {
				t.Errorf("the stock cache lost %d", lost)
			}

			guide.next("kubectl -n kube-system set image daemonset/node-local-dns node-cache=neardns/neardns-agent:")
			guide.next("kubectl -n kube-system rollout status ")
			// The kubelet ends the old pod. node-cache takes its rules and link away, unless it is killed.
			stock.Kill()
			load.phase(t, "stock killed, its rules and link left behind", 100)
			p := n.agent()
			n.awaitLeases(p, n.served()...)
			load.phase(t, "ours starts", 100)
			_, command, _ := strings.Cut(strings.Join(guide.next("kubectl -n kube-system exec daemonset/node-local-dns -- "), " "), " -- /bin/")
			if out := n.exec(p, strings.Fields(command)...); !strings.Contains(out, local4.String()) {
				t.Errorf("%s says:\n%s", command, out)
			}
			n.each(pod.NetNS, "ours", cached, n.served()...)
			if _, lost := load.phase(t, "ours serves", 200); lost > 0 {
				t.Errorf("ours lost %d", lost)
			}
			p.Kill()
			load.phase(t, "ours killed", 200)
			n.each(pod.NetNS, "ours killed", direct, n.served()...)
			p = n.agent()
			n.awaitLeases(p, n.served()...)
			if _, lost := load.phase(t, "ours again", 200); lost > 0 {
				t.Errorf("a start lost %d", lost)
			}

			guide.next("kubectl -n kube-system rollout undo daemonset/node-local-dns")
			// Ours is told to end, node-cache starts.
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
			testutil.Eventually(t, func() error {
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
			load.phase(t, "stock killed, our switch left behind", 200)
			n.each(pod.NetNS, "stock killed", direct, n.served()...)

			// Without the switch it is as it was.
			n.stock()
			testutil.Eventually(t, func() error { return cached(pod.NetNS, local4, "udp") })
			words := guide.next("neardns-agent cleanup")
			cleanup := n.container(words[0], words[1:]...)
			if err := cleanup.Wait(); err != nil {
				t.Fatalf("cleanup: %v\n%s", err, cleanup.Output())
			}
			n.wantNothing("after cleanup")
			n.each(pod.NetNS, "after cleanup, stock", cached, n.served()...)
			if len(guide.steps) > 0 {
				t.Errorf("the page has steps that nobody took: %q", guide.steps)
			}
		})
	}
}
