//go:build timing

package nodelocal_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

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

// answerWait is how long a client waits for an answer, as resolvers do: a busy machine may stand still for more than a second.
const answerWait = 3 * time.Second

// pace is how many queries each of the clients sends in a second.
const pace = 50

// startLoad sends queries at every address: over UDP on sockets that stay, and over a new TCP connection each time.
func (n *node) startLoad(from *testutil.NetNS, addresses ...netip.Addr) *load {
	n.t.Helper()
	l := &load{stop: make(chan struct{}), now: new(asked)}
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, 53)
		conn, err := testutil.Dial(from, "udp", at, testutil.AskOptions{Timeout: answerWait})
		testutil.Must(n.t, err)
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

// counted is the load of the tests that count.
func counted(n *node, from *testutil.NetNS) (phase func(when string, maxLost int)) {
	load := n.startLoad(from, n.served()...)
	n.t.Cleanup(load.end)
	return func(when string, maxLost int) {
		n.t.Helper()
		if _, lost := load.phase(n.t, when, 200); lost > maxLost {
			n.t.Errorf("%s: %d lost, want %d at most", when, lost, maxLost)
		}
	}
}

// TestTimingMoves counts what the moves cost. What the stock cache loses by its own end and start is its own; from our start to our end
// nothing is lost, but what is in flight when the back end changes.
//
// State: TestMoveAndBack, TestTwoDaemonSets, TestKilledThenRolledBack, TestBackendByItself. Bound: none, it counts lost queries.
func TestTimingMoves(t *testing.T) {
	for name, move := range map[string]func(*testing.T, counter){
		"move and back": moveAndBack, "two DaemonSets": twoDaemonSets, "killed, then rolled back": killedThenRolledBack, "back end by itself": backendByItself,
	} {
		t.Run(name, func(t *testing.T) { move(t, counted) })
	}
}
