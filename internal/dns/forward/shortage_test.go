package forward

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/neardns/neardns/internal/dns/resourceerr"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestNoDescriptors: the process has no descriptor left for queries. That is the agent's own limit, so the failure is not stored, and the
// server does not count as failing.
func TestNoDescriptors(t *testing.T) {
	testutil.RequireRoot(t)   // kernel tier: the test starts a process
	if !testutil.InChild(t) { // the limit is the whole process's
		return
	}
	f := newSocketFake(t, answersAs("upstream"))
	b := serveSockets(t, f.addr)
	lift := testutil.NoDescriptors(t)
	var wg sync.WaitGroup
	for i := range 2 * failLimit {
		wg.Go(func() {
			if !b.limited(fmt.Sprintf("n%d.example.org.", i)) {
				t.Errorf("question %d: the failure is held to be the upstream's", i)
			}
		})
	}
	wg.Wait()
	s := b.server(f.addr)
	s.suspect(b.Block)
	testutil.Eventually(t, func() error { return testutil.ErrorIf(s.isChecking(), "a health check runs") })
	if s.health.failing.Load() || strings.Contains(b.log.String(), "fails") {
		t.Errorf("the server is held to fail:\n%s", b.log)
	}
	lift()
	testutil.Equal(t, "the answer with descriptors again", "upstream", b.answer(testutil.Context(t), "udp", "well.example.org."))
}

// TestNoPorts: every port that the kernel may give out for a query is taken.
func TestNoPorts(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "ports")
	ns.Sysctl("net.ipv4.ip_local_port_range", "40000 40000")
	ns.Do(func() {
		for _, addr := range []string{"127.0.0.1:53", "[::1]:53"} {
			first, err := dial(t.Context(), connectSocket, addr, false, nil, 0)
			if err != nil {
				t.Errorf("the first to %s: %v", addr, err)
				continue
			}
			if l, err := dial(t.Context(), connectSocket, addr, false, nil, 0); err == nil {
				l.conn.Close()
				t.Errorf("a second to %s has a port", addr)
			} else if !resourceerr.ForQuery(err) {
				t.Errorf("the second to %s: %v: not known for a want of ports", addr, err)
			}
			first.conn.Close()
		}
	})
}
