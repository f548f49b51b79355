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

func (n *node) bareProber(t testing.TB) *Prober {
	t.Helper()
	cfg := n.config()
	cfg.Redirects = nil
	p, err := openProber(cfg, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// awaitWay waits until queries get through: IPv6 addresses serve only once the kernel's work queue has added their routes.
func (n *node) awaitWay(t testing.TB, p *Prober) {
	t.Helper()
	for _, target := range n.locals {
		for _, protocol := range protocols {
			testutil.Eventually(t, func() error { return probeInSilence(t, p, target, protocol).Err })
		}
	}
}

func TestBareProbe(t *testing.T) {
	for _, f := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			t.Run(fmt.Sprintf("%s/%s", f, proxy), func(t *testing.T) {
				n, p := newBareNode(t, testutil.Options{Families: f, Proxy: proxy})
				n.awaitWay(t, p)
				for _, target := range n.locals {
					for _, protocol := range protocols {
						for range 3 {
							wantOK(t, probe(t, p, target, protocol))
						}
					}
				}
				for _, q := range n.agent.Log() {
					if q.From.Addr() != steer.ProbeSource(q.From.Addr().Is4()) {
						t.Errorf("the agent was asked by %s, want the probe source", q.From)
					}
				}
				testutil.WantNoConntrack(t, n.Host)
			})
		}
	}
}

func TestBareFailures(t *testing.T) {
	n, p := newBareNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	n.awaitWay(t, p)
	each := func(f func(target netip.Addr, protocol steer.Protocol)) {
		t.Helper()
		for _, target := range n.locals {
			for _, protocol := range protocols {
				f(target, protocol)
			}
		}
	}
	n.agent.Behave(testutil.Behaviour{Drop: true})
	each(func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probeInSilence(t, p, target, protocol), Timeout, "no answer: ")
	})
	each(func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, n.canceled(t, p, target, protocol), Canceled, "canceled")
	})
	n.agent.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
	each(func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "SERVFAIL")
	})
	n.agent.Behave(testutil.Behaviour{})
	n.agent.Stop()
	each(func(target netip.Addr, protocol steer.Protocol) {
		wantFailure(t, probe(t, p, target, protocol), Refused, "no process listens")
	})
	n.agent.Start()
	each(func(target netip.Addr, protocol steer.Protocol) {
		wantOK(t, probe(t, p, target, protocol))
	})
	testutil.Must(t, p.Close())
	each(func(target netip.Addr, protocol steer.Protocol) {
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
			for _, a := range n.locals {
				if err := prove(t, p, a); err != nil {
					t.Error(err)
				}
			}
			if got := proofs(n.DNS); got != 4 {
				t.Errorf("kube-dns had %d proofs, want 4", got)
			}
			if got := n.agent.Asked(serviceName); got != 0 {
				t.Errorf("the agent was asked %d times", got)
			}
			n.Proxy.Remove()
			if err := proveInSilence(t, p, n.locals[0]); err == nil || !strings.Contains(err.Error(), "over udp") {
				t.Errorf("no translation: %v", err)
			}
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
		if _, err := p.Repair(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
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
	if err := p.Reconfigure(nil, n.locals[:1]); err != nil {
		t.Error(err)
	}
	wantOK(t, probe(t, p, n.locals[0], steer.UDP))
	if err := p.Reconfigure(n.redirects, n.locals); err == nil || !strings.Contains(err.Error(), "need a pod table") {
		t.Errorf("redirects without a netns: %v", err)
	}
}
