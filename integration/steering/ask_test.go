package steering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// target is whom a pod queries, and how.
type target struct {
	addr    netip.Addr
	network string
}

func (t target) String() string         { return t.network + " " + t.addr.String() }
func (t target) server() netip.AddrPort { return netip.AddrPortFrom(t.addr, 53) }
func targets(addrs ...netip.Addr) (out []target) {
	for _, a := range addrs {
		out = append(out, target{a, "udp"}, target{a, "tcp"})
	}
	return out
}

// all are the node's cluster DNS and local addresses over both protocols.
func (n *node) all() []target { return targets(append(n.ClusterDNS(), n.locals()...)...) }

var names atomic.Int64

// freshName is a name that no client has queried yet.
func freshName() string { return fmt.Sprintf("name%d.default.svc.cluster.local.", names.Add(1)) }

// client is a pod, or a process on the host.
type client struct {
	ns  *testutil.NetNS
	own []netip.Addr // as kube-dns sees it when queried directly
}

// client is the pod. What iptables gives back to kube-dns comes to it from the node's address, as the node-local-dns module's
// KUBE-MARK-MASQ has it.
func (p *pod) client() client {
	if p.node.setup.backend != "" {
		return client{ns: p.NetNS}
	}
	return client{p.NetNS, p.addrs}
}

// ask queries an A record and checks that the data is the one that kube-dns gave with this serial.
func (c client) ask(at target, name string, timeout time.Duration) (*testutil.Answer, error) {
	a, err := testutil.Ask(c.ns, at.server(), name, dns.TypeA, at.network, testutil.AskOptions{Timeout: timeout, EDNS: 1232})
	if err != nil {
		return nil, err
	}
	return a, rightData(a)
}

// rightData reports whether the answer is whole: from kube-dns, with the address that it makes of its serial.
func rightData(a *testutil.Answer) error {
	if a.Who != "KUBEDNS" || a.Rcode() != "NOERROR" || len(a.Msg.Answer) != 1 {
		return fmt.Errorf("wrong answer: %s\n%s", a, a.Msg)
	}
	record, ok := a.Msg.Answer[0].(*dns.A)
	if want := net.IPv4(198, 18, byte(a.Serial>>8), byte(a.Serial)); !ok || !record.A.Equal(want) {
		return fmt.Errorf("wrong data, want %s:\n%s", want, a.Msg)
	}
	return nil
}

// direct reports whether kube-dns saw the client itself, and not the agent.
func (c client) direct(a *testutil.Answer) bool { return slices.Contains(c.own, a.Client) }

// steered reports whether a query goes to the cache: the second answer is the first one.
func (c client) steered(at target) error {
	name := freshName()
	miss, err := c.ask(at, name, time.Second*testutil.Slowness())
	if err != nil {
		return fmt.Errorf("%s, miss: %w", at, err)
	}
	if c.direct(miss) {
		return fmt.Errorf("%s: answered by kube-dns itself, want the cache", at)
	}
	hit, err := c.ask(at, name, time.Second*testutil.Slowness())
	if err != nil {
		return fmt.Errorf("%s, hit: %w", at, err)
	}
	if hit.Serial != miss.Serial {
		return fmt.Errorf("%s: kube-dns was asked twice (answers %d and %d), want one from the cache", at, miss.Serial, hit.Serial)
	}
	return nil
}

// fellBack reports whether a query goes to kube-dns, by the client itself.
func (c client) fellBack(at target, timeout time.Duration) error {
	name := freshName()
	first, err := c.ask(at, name, timeout)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if len(c.own) > 0 && !c.direct(first) {
		return fmt.Errorf("%s: kube-dns was asked by %s, want the client itself %v", at, first.Client, c.own)
	}
	if len(c.own) == 0 {
		again, err := c.ask(at, name, timeout)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if again.Serial == first.Serial {
			return fmt.Errorf("%s: answered from the cache, want kube-dns", at)
		}
	}
	return nil
}

// dial connects a pod with a server until the test ends.
func (n *node) dial(p *pod, at target) *testutil.Conn {
	n.t.Helper()
	c, err := testutil.Dial(p.NetNS, at.network, at.server(), testutil.AskOptions{})
	testutil.Must(n.t, err)
	n.t.Cleanup(c.Close)
	return c
}

// wantSteered waits until every target is answered by the cache.
func (n *node) wantSteered(c client, when string, ats ...target) {
	n.t.Helper()
	for _, at := range ats {
		testutil.Eventually(n.t, func() error { return wrap(when, c.steered(at)) })
	}
}

// wantFallback queries every target once: no query may be lost.
func (n *node) wantFallback(c client, when string, ats ...target) {
	n.t.Helper()
	for _, at := range ats {
		testutil.Check(n.t, c.fellBack(at, testutil.Attempt), when)
	}
}

// awaitFallback queries every target, all at the same time, until each was answered by kube-dns.
func (n *node) awaitFallback(c client, when string, ats ...target) {
	n.t.Helper()
	left := ats
	testutil.Eventually(n.t, func() error {
		failed := make([]error, len(left))
		var wg sync.WaitGroup
		for i, at := range left {
			wg.Go(func() { failed[i] = c.fellBack(at, testutil.Silence) }) // what an agent that hangs has received is lost
		}
		wg.Wait()
		var still []target
		for i, at := range left {
			if failed[i] != nil {
				still = append(still, at)
			}
		}
		left = still
		return wrap(when, errors.Join(failed...))
	})
}

// wantUntracked queries what the cache holds, and looks that no conntrack entry comes of it on either side.
func (n *node) wantUntracked(p *pod, ats ...target) {
	n.t.Helper()
	for _, at := range ats {
		testutil.Eventually(n.t, func() error {
			name := freshName()
			miss, err := p.client().ask(at, name, time.Second)
			if err != nil {
				return err
			}
			testutil.FlushConntrack(n.Host)
			testutil.FlushConntrack(p.NetNS)
			hit, err := p.client().ask(at, name, time.Second)
			if err != nil {
				return err
			}
			if hit.Serial != miss.Serial {
				return fmt.Errorf("%s: no hit", at)
			}
			if lines := append(p.tracked(n.Host), p.tracked(p.NetNS)...); len(lines) > 0 {
				n.t.Errorf("a hit over %s is tracked:\n%s", at, strings.Join(lines, "\n"))
			}
			return nil
		})
	}
}

func wrap(when string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", when, err)
}
