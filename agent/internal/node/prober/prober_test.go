package prober

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) {
	if fd := os.Getenv(childVariable); fd != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

const instance = "node-a.1700000000"

// node is a cluster node with the host table, our addresses and a stand-in for the agent, but no prober yet.
type node struct {
	*testutil.Node
	agent     *testutil.DNSServer
	redirects []steer.Redirect
	locals    []netip.Addr
}

func newNode(t testing.TB, o testutil.Options) *node {
	t.Helper()
	testutil.RequireRoot(t)
	n := &node{Node: testutil.NewNode(t, o)}
	for _, a := range n.ClusterDNS() {
		n.redirects = append(n.redirects, steer.Redirect{ClusterDNS: a})
		local := netip.MustParseAddr("fd00:90de:d95::a")
		if a.Is4() {
			local = netip.MustParseAddr("169.254.20.10")
		}
		n.locals = append(n.locals, local)
	}
	var err error
	if n.redirects, err = steer.Complete(n.redirects); err != nil {
		t.Fatal(err)
	}
	listen := func(a netip.Addr) netip.AddrPort {
		n.Host.AddAddr("lo", testutil.Host(a))
		return netip.AddrPortFrom(a, 53)
	}
	var at []netip.AddrPort
	for i, r := range n.redirects {
		at = append(at, listen(r.Steering), listen(n.locals[i]))
	}
	n.agent = testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: instance, Listen: at})
	n.applyHostTable(t)
	if n.DNS != nil {
		// As CoreDNS: it knows nothing of the prober's zone.
		n.DNS.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
			if dns.IsSubDomain(Zone, q.Name) {
				return new(dns.Msg).SetRcode(q.Msg, dns.RcodeNameError)
			}
			return n.DNS.Answer(q)
		}})
	}
	return n
}

func (n *node) applyHostTable(t testing.TB, change ...func(*steer.Host)) {
	t.Helper()
	locals, err := steer.Locals(n.locals, n.redirects)
	if err != nil {
		t.Fatal(err)
	}
	table, err := nft.Open(n.Host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	host := steer.Host{Redirects: n.redirects, Locals: locals, Uplinks: []string{"eth0"}}
	for _, f := range change {
		f(&host)
	}
	testutil.Must(t, table.Apply(host))
}

func (n *node) config() Config {
	return Config{Redirects: n.redirects, Locals: n.locals, HostNetNS: n.Host.FD(), Log: slog.New(slog.DiscardHandler)}
}

func (n *node) prober(t testing.TB) *Prober {
	t.Helper()
	p, err := New(n.config())
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

// targets are all addresses that a prober queries: through the pod table, and directly like clients that name a local address.
func (n *node) targets() []netip.Addr { return append(n.ClusterDNS(), n.locals...) }

// probe waits for the probe's result as long as it takes.
func probe(t testing.TB, p *Prober, target netip.Addr, protocol steer.Protocol) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	return p.Probe(ctx, target, protocol)
}

// probeInSilence is for a probe that gets no answer: it ends soon.
func probeInSilence(t testing.TB, p *Prober, target netip.Addr, protocol steer.Protocol) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Silence)
	defer cancel()
	return p.Probe(ctx, target, protocol)
}

// prove waits for the result of the fallback check as long as it takes.
func prove(t testing.TB, p *Prober, target netip.Addr) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	return p.CheckFallback(ctx, target, serviceName)
}

// proveInSilence is for a fallback check that gets no answer: it ends soon.
func proveInSilence(t testing.TB, p *Prober, target netip.Addr) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Silence)
	defer cancel()
	return p.CheckFallback(ctx, target, serviceName)
}

// canceled is a probe that is canceled when the agent has its query.
func (n *node) canceled(t *testing.T, p *Prober, target netip.Addr, protocol steer.Protocol) Result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before, result := len(n.agent.Log()), make(chan Result, 1)
	go func() { result <- p.Probe(ctx, target, protocol) }()
	testutil.Eventually(t, func() error {
		if len(n.agent.Log()) == before {
			return errors.New("the agent has no query")
		}
		return nil
	})
	cancel()
	return testutil.Receive(t, result)
}

func wantOK(t testing.TB, r Result) {
	t.Helper()
	if r.Failure != None || r.Instance != instance {
		t.Errorf("probe: %q %v from %q, want an answer from %s", r.Failure, r.Err, r.Instance, instance)
	}
}

func wantFailure(t testing.TB, r Result, want Failure, says string) {
	t.Helper()
	if r.Failure != want || r.Err == nil || !strings.Contains(r.Err.Error(), says) || r.Instance != "" {
		t.Errorf("probe: %q %v from %q, want %s that says %q", r.Failure, r.Err, r.Instance, want, says)
	}
}

var protocols = []steer.Protocol{steer.UDP, steer.TCP}

// There is no lease, so pods' queries would go to kube-dns. Only the prober's reach the agent, so that a first lease can be granted.
func TestProbe(t *testing.T) {
	for _, f := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			t.Run(fmt.Sprintf("%s/%s", f, proxy), func(t *testing.T) {
				n := newNode(t, testutil.Options{Families: f, Proxy: proxy})
				p := n.prober(t)
				for _, target := range n.targets() {
					for _, protocol := range protocols {
						for range 3 {
							wantOK(t, probe(t, p, target, protocol))
						}
					}
				}
				asked := map[string]bool{}
				for _, q := range n.agent.Log() {
					if q.From.Addr() != steer.ProbeSource(q.From.Addr().Is4()) {
						t.Errorf("the agent was asked by %s, want the probe source", q.From)
					}
					asked[q.Network+" "+q.To.Addr().String()] = true
				}
				if want := 2 * len(n.targets()); len(asked) != want {
					t.Errorf("sockets that were asked: %v, want %d", asked, want)
				}
				testutil.WantNoConntrack(t, n.Host)
			})
		}
	}
}

func TestProbeFailures(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	p := n.prober(t)
	each := func(f func(target netip.Addr, protocol steer.Protocol)) {
		t.Helper()
		for _, target := range n.targets() {
			for _, protocol := range protocols {
				f(target, protocol)
			}
		}
	}
	t.Run("hung", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Drop: true})
		defer n.agent.Behave(testutil.Behaviour{})
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probeInSilence(t, p, target, protocol), Timeout, "no answer: ")
		})
	})
	t.Run("an answer that comes late is not the next question's", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Delay: testutil.Silence + testutil.Silence/2})
		target := n.ClusterDNS()[0]
		wantFailure(t, probeInSilence(t, p, target, steer.UDP), Timeout, "no answer")
		n.agent.Behave(testutil.Behaviour{Drop: true})
		wantFailure(t, probeInSilence(t, p, target, steer.UDP), Timeout, "no answer")
		n.agent.Behave(testutil.Behaviour{})
		wantOK(t, probe(t, p, target, steer.UDP))
	})
	t.Run("the agent answers nonsense", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
		defer n.agent.Behave(testutil.Behaviour{})
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "SERVFAIL")
		})
	})
	t.Run("canceled", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Drop: true})
		defer n.agent.Behave(testutil.Behaviour{})
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, n.canceled(t, p, target, protocol), Canceled, "canceled")
		})
	})
	t.Run("no socket, so kube-dns answers", func(t *testing.T) {
		n.agent.Stop()
		defer n.agent.Start()
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "NXDOMAIN by another server than the agent")
		})
	})
	t.Run("back again on the same sockets", func(t *testing.T) {
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantOK(t, probe(t, p, target, protocol))
		})
	})
	t.Run("no switch and no socket", func(t *testing.T) {
		n.agent.Stop()
		n.Host.Run("nft", "delete", "table", "inet", steer.TableName)
		for _, local := range n.locals {
			for _, protocol := range protocols {
				wantFailure(t, probe(t, p, local, protocol), Refused, "no process listens")
			}
		}
	})
	t.Run("closed", func(t *testing.T) {
		testutil.Must(t, p.Close())
		each(func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, target, protocol), Network, "closed")
		})
		if err := p.CheckFallback(t.Context(), n.ClusterDNS()[0], "a."); !errors.Is(err, errClosed) {
			t.Errorf("Prove after Close: %v", err)
		}
		if _, err := p.Repair(); !errors.Is(err, errClosed) {
			t.Errorf("Ensure after Close: %v", err)
		}
	})
}

const serviceName = "kubernetes.default.svc.cluster.local."

// proofs counts the sockets that sent the fallback check's name to kube-dns. One socket repeats its query if an answer takes a second.
func proofs(s *testutil.DNSServer) int {
	from := map[string]bool{}
	for _, q := range s.Log() {
		if q.Name == serviceName {
			from[q.Network+q.From.String()] = true
		}
	}
	return len(from)
}

// The fallback check uses the fallback also while the agent serves, and fails if the path of the fallback is broken.
func TestProve(t *testing.T) {
	for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
		t.Run(string(proxy), func(t *testing.T) {
			n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: proxy})
			p := n.prober(t)
			for _, a := range n.ClusterDNS() {
				if err := prove(t, p, a); err != nil {
					t.Error(err)
				}
			}
			if got := proofs(n.DNS); got != 4 {
				t.Errorf("kube-dns had %d proofs, want 4", got)
			}
			for _, q := range n.DNS.Log() {
				if from := q.From.Addr(); from == steer.FallbackCheckSource(from.Is4()) {
					t.Errorf("a question left the node from %s: kube-dns elsewhere could not answer", from)
				}
			}
			if got := n.agent.Asked(serviceName); got != 0 {
				t.Errorf("the agent was asked %d times", got)
			}
			first := n.ClusterDNS()[0]
			n.DNS.Behave(testutil.Behaviour{Rcode: dns.RcodeNameError})
			if err := prove(t, p, first); err != nil {
				t.Errorf("NXDOMAIN is an answer: %v", err)
			}
			n.DNS.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
			if err := prove(t, p, first); err == nil || !strings.Contains(err.Error(), "SERVFAIL") {
				t.Errorf("kube-dns fails: %v", err)
			}
			n.DNS.Behave(testutil.Behaviour{})
			n.Proxy.Remove()
			if err := proveInSilence(t, p, first); err == nil || !strings.Contains(err.Error(), "over udp") {
				t.Errorf("no translation: %v", err)
			}
		})
	}
}

// A reload takes the sockets away from probes that are out. They are answered nevertheless.
func TestReconfigureAwaitsProbes(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	p, err := New(n.config())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	asked, answer := make(chan struct{}), make(chan struct{})
	n.agent.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		close(asked)
		<-answer
		return n.agent.Answer(q)
	}})
	heard := make(chan Result)
	go func() { heard <- probe(t, p, n.redirects[0].ClusterDNS, steer.UDP) }()
	<-asked
	if err := p.Reconfigure(n.redirects, n.locals); err != nil {
		t.Error(err)
	}
	close(answer)
	wantOK(t, <-heard)
	n.agent.Behave(testutil.Behaviour{})
	wantOK(t, probe(t, p, n.redirects[0].ClusterDNS, steer.UDP))
}

func TestReconfigure(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	cfg := n.config()
	cfg.Redirects, cfg.Locals = n.redirects[:1], nil
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	wantOK(t, probe(t, p, n.redirects[0].ClusterDNS, steer.UDP))
	testutil.Must(t, p.Reconfigure(n.redirects, n.locals))
	for _, target := range n.targets() {
		for _, protocol := range protocols {
			wantOK(t, probe(t, p, target, protocol))
		}
	}
	testutil.Must(t, p.Reconfigure(n.redirects[1:], nil))
	wantOK(t, probe(t, p, n.redirects[1].ClusterDNS, steer.TCP))
	if err := p.inside.table.Verify(steer.Pod{Redirects: n.redirects[1:], Always: true}); err != nil {
		t.Error(err)
	}
}
