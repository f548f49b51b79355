package environment

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// target is a cluster DNS address and a protocol.
type target struct {
	addr    netip.Addr
	network string
}

func (t target) String() string { return t.network + " " + t.addr.String() }

func (n *node) targets() (out []target) {
	for _, a := range n.ClusterDNS() {
		out = append(out, target{a, "udp"}, target{a, "tcp"})
	}
	return out
}

var names atomic.Int64

func freshName() string {
	return "name" + strconv.FormatInt(names.Add(1), 10) + ".default.svc.cluster.local."
}

// ask sends queries from the pod and holds that the answer is kube-dns's, from wherever it came.
func (n *node) ask(at target, name string, timeout time.Duration) (*testutil.Answer, error) {
	a, err := testutil.Ask(n.pod.NetNS, netip.AddrPortFrom(at.addr, 53), name, dns.TypeA, at.network, testutil.AskOptions{Timeout: timeout, EDNS: 1232})
	if err == nil && a.Rcode() == "SERVFAIL" {
		err = errors.New("SERVFAIL: kube-dns's stand-in, in this process, was silent")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if a.Who != "KUBEDNS" || a.Rcode() != "NOERROR" || len(a.Msg.Answer) != 1 {
		return nil, &wrongError{fmt.Sprintf("%s: wrong answer: %s\n%s", at, a, a.Msg)}
	}
	return a, nil
}

type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

// cached returns nil if a query is answered from the cache: the second answer is the first one.
func (n *node) cached(at target) error {
	name := freshName()
	miss, err := n.ask(at, name, time.Second)
	if err != nil {
		return err
	}
	hit, err := n.ask(at, name, time.Second)
	if err == nil && hit.Serial != miss.Serial {
		err = fmt.Errorf("%s: kube-dns was asked twice, want one answer from the cache", at)
	}
	return err
}

func (n *node) awaitCached(when string) {
	n.t.Helper()
	for _, at := range n.targets() {
		testutil.Eventually(n.t, func() error {
			if err := n.cached(at); err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			return nil
		})
	}
}

// clients query every target again and again, as pods do while something happens.
type clients struct {
	n        *node
	answered func(target) // called for each answer, by one goroutine per target
	stop     func()       // may be called again
	ended    chan struct{}
	wg       sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	asked int
	lost  int
	wrong error
}

const askTimeout = 250 * time.Millisecond

func (n *node) keepAsking() *clients { return n.keepAskingFor(func(target) {}) }

func (n *node) keepAskingFor(answered func(target)) *clients {
	a := &clients{n: n, answered: answered, ended: make(chan struct{})}
	a.stop = sync.OnceFunc(func() { close(a.ended) })
	n.t.Cleanup(func() { // of a test that failed: the pod's netns goes next
		a.stop()
		a.wg.Wait()
	})
	name := freshName()
	for _, at := range n.targets() {
		a.wg.Go(func() {
			for tick := time.NewTicker(40 * time.Millisecond); ; {
				select {
				case <-a.ended:
					tick.Stop()
					return
				case <-tick.C:
				}
				_, err := n.ask(at, name, askTimeout)
				a.mu.Lock()
				a.asked++
				var wrong *wrongError
				switch {
				case errors.As(err, &wrong):
					a.wrong = err
				case err != nil:
					a.lost++
				}
				a.mu.Unlock()
				if err == nil {
					a.answered(at)
				}
			}
		})
	}
	return a
}

// end stops the queries and fails the test if an answer was wrong or none was right. A lost query is no failure: the timing tier counts
// them.
func (a *clients) end(when string) {
	a.n.t.Helper()
	testutil.Eventually(a.n.t, func() error { // a repair may take less than the one query that it finds on the way
		a.mu.Lock()
		defer a.mu.Unlock()
		return testutil.ErrorIf(a.lost == a.asked, "%s: none of %d queries had an answer", when, a.asked)
	})
	a.stop()
	a.wg.Wait()
	a.n.t.Logf("%s: %d queries, %d lost", when, a.asked, a.lost)
	if a.wrong != nil {
		a.n.t.Errorf("%s: %v", when, a.wrong)
	}
}
