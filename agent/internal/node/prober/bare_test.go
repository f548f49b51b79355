package prober

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// newBareNode is a node in node-cache mode, whose clients name local addresses, and a prober without a netns.
func newBareNode(t testing.TB, o testutil.Options) (*node, *Prober) {
	t.Helper()
	n := newNode(t, o)
	n.applyHostTable(t, func(h *steer.Host) { h.Redirects, h.OwnLocals = nil, true })
	return n, n.bareProber(t)
}

func (n *node) bareProber(t testing.TB) (p *Prober) {
	t.Helper()
	cfg := n.config()
	cfg.Redirects = nil
	testutil.Eventually(t, func() (err error) { p, err = openProber(cfg, true); return err }) // as in prober
	t.Cleanup(func() { testutil.Check(t, p.Close(), "close") })
	return p
}

// awaitWay waits until queries get through: IPv6 addresses serve only once the kernel's work queue has added their routes.
func (n *node) awaitWay(t testing.TB, p *Prober) {
	t.Helper()
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		testutil.Eventually(t, func() error { return probeInSilence(t, p, target, protocol).Err })
	})
}

func TestBareProbe(t *testing.T) {
	for _, f := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			t.Run(fmt.Sprintf("%s/%s", f, proxy), func(t *testing.T) {
				n, p := newBareNode(t, testutil.Options{Families: f, Proxy: proxy})
				n.awaitWay(t, p)
				n.wantProbed(t, p, n.locals)
			})
		}
	}
}

// TestBareProbeBeforeRoute: a probe that was sent before the target's route existed costs one result. A connected IPv6 socket keeps the
// route of another table.
func TestBareProbeBeforeRoute(t *testing.T) {
	n, p := newBareNode(t, testutil.Options{Families: testutil.IPv6, Proxy: testutil.NFTables})
	n.awaitWay(t, p)
	target := n.locals[0]
	route := strings.Fields(n.Host.Run("ip", "-6", "route", "show", "table", "local", "root", target.String()))
	n.Host.Run(append([]string{"ip", "-6", "route", "del", "table", "local"}, route...)...)
	wantFailure(t, probeInSilence(t, p, target, steer.UDP), Timeout, "no answer")
	n.Host.Run(append([]string{"ip", "-6", "route", "add", "table", "local"}, route...)...)
	wantOK(t, probe(t, p, target, steer.UDP))
}

// TestBareNeverASource: towards a pod behind a veth without addresses the node never sends as the prober. Its address would be the best
// match for a pod's in the same prefix (RFC 6724, rules 6 and 8).
func TestBareNeverASource(t *testing.T) {
	n, p := newBareNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	n.awaitWay(t, p)
	pod := testutil.NewNS(t, "pod")
	testutil.VethPair(t, n.Host, "cali1", pod, "eth0")
	n.Host.NoDAD("cali1")
	n.Host.Up("cali1")
	pod.Up("eth0")
	n.Host.Run("ip", "addr", "flush", "dev", "lo", "scope", "global") // the rig's local addresses
	n.Host.Run("ip", "route", "add", "10.244.77.5/32", "dev", "cali1", "scope", "link")
	n.Host.Run("ip", "-6", "route", "add", "fd00:90de:d95:1::5/128", "dev", "cali1")
	for _, dst := range []string{"10.244.77.5", "fd00:90de:d95:1::5"} {
		route := n.Host.Run("ip", "route", "get", dst)
		for _, source := range []netip.Addr{steer.ProbeSource4, steer.FallbackCheckSource4, steer.ProbeSource6, steer.FallbackCheckSource6} {
			if strings.Contains(route, " src "+source.String()+" ") {
				t.Errorf("route get %s: %q", dst, strings.TrimSpace(route))
			}
		}
	}
}

func TestBareFailures(t *testing.T) {
	n, p := newBareNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	n.awaitWay(t, p)
	n.agent.Behave(testutil.Behaviour{Drop: true})
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probeInSilence(t, p, target, protocol), Timeout, "no answer: ")
	})
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, n.canceled(t, p, target, protocol), Canceled, "canceled")
	})
	n.agent.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "SERVFAIL")
	})
	n.agent.Behave(testutil.Behaviour{})
	n.agent.Stop()
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probe(t, p, target, protocol), Refused, "no process listens")
	})
	n.agent.Start()
	wantAllOK(t, p, n.locals)
	testutil.Must(t, p.Close())
	each(n.locals, func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probe(t, p, target, protocol), Network, "closed")
	})
	if _, err := n.Host.Netlink().LinkByName(steer.SourcesInterface); !hostnet.IsNoLink(err) {
		t.Errorf("%s after Close: %v", steer.SourcesInterface, err)
	}
}

// The fallback check goes by the local address, as clients' queries do, to kube-dns and back, also if the answer is fragmented.
func TestBareProve(t *testing.T) {
	for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
		t.Run(string(proxy), func(t *testing.T) {
			n, p := newBareNode(t, testutil.Options{Families: testutil.Dual, Proxy: proxy})
			n.awaitWay(t, p)
			n.wantProved(t, p, n.locals)
			n.wantUnproved(t, p, n.locals[0])
		})
	}
}

// The prober restores what another program removes, also after a killed predecessor.
func TestBareRepair(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	n.applyHostTable(t, func(h *steer.Host) { h.Redirects, h.OwnLocals = nil, true })
	testutil.VethPair(t, n.Host, steer.ProberInterface, n.Host, steer.SourcesInterface) // a dead predecessor's
	p := n.bareProber(t)
	for name, wreck := range map[string]func(){
		"nothing":   func() {},
		"deleted":   func() { n.Host.DelLink(steer.SourcesInterface) },
		"down":      func() { n.Host.Down(steer.SourcesInterface) },
		"host end":  func() { n.Host.Down(steer.ProberInterface) },
		"addresses": func() { n.Host.Run("ip", "addr", "flush", "dev", steer.SourcesInterface) },
		"hardware address": func() {
			n.Host.Run("ip", "link", "set", steer.SourcesInterface, "address", "02:00:00:00:00:09")
		},
	} {
		wreck()
		p.settle(t)
		n.awaitWay(t, p)
		if again, err := p.Repair(); err != nil || again != "" {
			t.Errorf("%s: a second repair did %q, %v", name, again, err)
		}
	}
	cfg := n.config()
	cfg.Redirects = nil
	if _, err := New(cfg); !errors.Is(err, ErrHeld) {
		t.Errorf("a second prober: %v, want ErrHeld", err)
	}
	testutil.Check(t, p.Reconfigure(nil, n.locals[:1]))
	wantOK(t, probe(t, p, n.locals[0], steer.UDP))
	testutil.WantError(t, p.Reconfigure(n.redirects, n.locals), "need a pod table", "redirects without a netns")
}
