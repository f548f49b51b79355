package prober

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) {
	if fd := os.Getenv(childVariable); fd != "" {
		child()
		return
	}
	testutil.NoLeaks(m)
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
	testutil.Must(t, err)
	table, err := nft.Open(n.Host.FD())
	testutil.Must(t, err)
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

func (n *node) prober(t testing.TB) (p *Prober) {
	t.Helper()
	testutil.Eventually(t, func() (err error) { p, err = New(n.config()); return err }) // the kernel may set its ends up late
	t.Cleanup(func() { testutil.Check(t, p.Close(), "close") })
	p.settle(t)
	return p
}

// settle repairs until the kernel has set up what the prober needs, and returns what was done.
func (p *Prober) settle(t testing.TB) (did string) {
	t.Helper()
	testutil.Eventually(t, func() error {
		what, err := p.Repair()
		did = cmp.Or(did, what)
		return err
	})
	return did
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
	testutil.Eventually(t, func() error { return testutil.ErrorIf(len(n.agent.Log()) == before, "the agent has no query") })
	cancel()
	return testutil.Receive(t, result)
}

func wantOK(t testing.TB, r Result) {
	t.Helper()
	if r.Failure != None || r.Instance != instance {
		t.Errorf("probe: %q %v from %q, want an answer from %s", r.Failure, r.Err, r.Instance, instance)
	}
}

// each calls f for each target over each protocol.
func each(targets []netip.Addr, f func(target netip.Addr, protocol steer.Protocol)) {
	for _, target := range targets {
		f(target, steer.UDP)
		f(target, steer.TCP)
	}
}

// wantAllOK probes each target over each protocol.
func wantAllOK(t testing.TB, p *Prober, targets []netip.Addr) {
	t.Helper()
	each(targets, func(target netip.Addr, protocol steer.Protocol) { wantOK(t, probe(t, p, target, protocol)) })
}

// wantProbed probes each target three times over each protocol: the agent has the queries, from the probe source.
func (n *node) wantProbed(t *testing.T, p *Prober, targets []netip.Addr) {
	t.Helper()
	for range 3 {
		wantAllOK(t, p, targets)
	}
	asked := map[string]bool{}
	for _, q := range n.agent.Log() {
		if q.From.Addr() != steer.ProbeSource(q.From.Addr().Is4()) {
			t.Errorf("the agent was asked by %s, want the probe source", q.From)
		}
		asked[q.Network+" "+q.To.Addr().String()] = true
	}
	testutil.Equal(t, "sockets that were asked", 2*len(targets), len(asked))
	testutil.WantNoConntrack(t, n.Host)
}

func wantFailure(t testing.TB, r Result, want Failure, says string) {
	t.Helper()
	if r.Failure != want || r.Err == nil || !strings.Contains(r.Err.Error(), says) || r.Instance != "" {
		t.Errorf("probe: %q %v from %q, want %s that says %q", r.Failure, r.Err, r.Instance, want, says)
	}
}

// There is no lease, so pods' queries would go to kube-dns. Only the prober's reach the agent, so that a first lease can be granted.
func TestProbe(t *testing.T) {
	for _, f := range []testutil.Families{testutil.IPv4, testutil.IPv6, testutil.Dual} {
		for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
			t.Run(fmt.Sprintf("%s/%s", f, proxy), func(t *testing.T) {
				n := newNode(t, testutil.Options{Families: f, Proxy: proxy})
				n.wantProbed(t, n.prober(t), n.targets())
			})
		}
	}
}

func TestProbeFailures(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	p := n.prober(t)
	t.Run("hung", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Drop: true})
		defer n.agent.Behave(testutil.Behaviour{})
		each(n.targets(), func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probeInSilence(t, p, target, protocol), Timeout, "no answer: ")
		})
	})
	t.Run("a late answer to a canceled query is not the next one's", func(t *testing.T) {
		late := make(chan struct{})
		n.agent.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg { <-late; return n.agent.Answer(q) }})
		target := n.ClusterDNS()[0]
		wantFailure(t, n.canceled(t, p, target, steer.UDP), Canceled, "canceled")
		n.agent.Behave(testutil.Behaviour{Drop: true})
		close(late)
		wantFailure(t, probeInSilence(t, p, target, steer.UDP), Timeout, "no answer")
		n.agent.Behave(testutil.Behaviour{})
		wantOK(t, probe(t, p, target, steer.UDP))
	})
	t.Run("the agent answers nonsense", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
		defer n.agent.Behave(testutil.Behaviour{})
		each(n.targets(), func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "SERVFAIL")
		})
	})
	t.Run("canceled", func(t *testing.T) {
		n.agent.Behave(testutil.Behaviour{Drop: true})
		defer n.agent.Behave(testutil.Behaviour{})
		each(n.targets(), func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, n.canceled(t, p, target, protocol), Canceled, "canceled")
		})
	})
	t.Run("no socket, so kube-dns answers", func(t *testing.T) {
		n.agent.Stop()
		defer n.agent.Start()
		each(n.targets(), func(target netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, target, protocol), WrongAnswer, "NXDOMAIN by another server than the agent")
		})
	})
	t.Run("back again on the same sockets", func(t *testing.T) {
		wantAllOK(t, p, n.targets())
	})
	t.Run("no switch and no socket", func(t *testing.T) {
		n.agent.Stop()
		n.Host.Run("nft", "delete", "table", "inet", steer.TableName)
		each(n.locals, func(local netip.Addr, protocol steer.Protocol) {
			wantFailure(t, probe(t, p, local, protocol), Refused, "no process listens")
		})
	})
	t.Run("closed", func(t *testing.T) {
		testutil.Must(t, p.Close())
		each(n.targets(), func(target netip.Addr, protocol steer.Protocol) {
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

// wantProved proves the fallback to both targets, over both protocols by kube-dns and not by the agent.
func (n *node) wantProved(t *testing.T, p *Prober, targets []netip.Addr) {
	t.Helper()
	for _, a := range targets {
		testutil.Check(t, prove(t, p, a))
	}
	testutil.Equal(t, "proofs at kube-dns", 4, proofs(n.DNS))
	testutil.Equal(t, "queries to the agent", 0, n.agent.Asked(serviceName))
}

// wantUnproved takes kube-proxy's rules away, without which nothing is proved.
func (n *node) wantUnproved(t *testing.T, p *Prober, target netip.Addr) {
	t.Helper()
	n.Proxy.Remove()
	testutil.WantError(t, proveInSilence(t, p, target), "over udp", "no translation")
}

// The fallback check uses the fallback also while the agent serves, and fails if the path of the fallback is broken.
func TestProve(t *testing.T) {
	for _, proxy := range []testutil.ProxyMode{testutil.IPTables, testutil.NFTables} {
		t.Run(string(proxy), func(t *testing.T) {
			n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: proxy})
			p := n.prober(t)
			n.wantProved(t, p, n.ClusterDNS())
			for _, q := range n.DNS.Log() {
				if from := q.From.Addr(); from == steer.FallbackCheckSource(from.Is4()) {
					t.Errorf("a question left the node from %s: kube-dns elsewhere could not answer", from)
				}
			}
			first := n.ClusterDNS()[0]
			n.DNS.Behave(testutil.Behaviour{Rcode: dns.RcodeNameError})
			testutil.Check(t, prove(t, p, first), "NXDOMAIN is an answer")
			n.DNS.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure})
			testutil.WantError(t, prove(t, p, first), "SERVFAIL", "kube-dns fails")
			n.DNS.Behave(testutil.Behaviour{})
			n.wantUnproved(t, p, first)
		})
	}
}

// A reload leaves a probe in flight its socket, and so its answer.
func TestReconfigureAwaitsProbes(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	p, err := New(n.config())
	testutil.Must(t, err)
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
	testutil.Check(t, p.Reconfigure(n.redirects, n.locals))
	close(answer)
	wantOK(t, <-heard)
}

func TestReconfigure(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	cfg := n.config()
	cfg.Redirects, cfg.Locals = n.redirects[:1], nil
	p, err := New(cfg)
	testutil.Must(t, err)
	defer p.Close()
	wantOK(t, probe(t, p, n.redirects[0].ClusterDNS, steer.UDP))
	testutil.Must(t, p.Reconfigure(n.redirects, n.locals))
	wantAllOK(t, p, n.targets())
	testutil.Must(t, p.Reconfigure(n.redirects[1:], nil))
	wantOK(t, probe(t, p, n.redirects[1].ClusterDNS, steer.TCP))
	testutil.Check(t, p.inside.table.Verify(steer.Pod{Redirects: n.redirects[1:], Always: true}))
}
