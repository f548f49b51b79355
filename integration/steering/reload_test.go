package steering

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// What the agent reports about a new configuration.
const (
	reloaded = "configuration reloaded"
	refused  = "the old one keeps serving"
)

// reload changes the configuration and waits until the agent has reported that it works by it. The change alone must do, as
// with a ConfigMap; a signal must do as well, and where both come nothing is done twice.
func (n *node) reload(more string, signal bool) {
	n.t.Helper()
	from := len(n.agent.Output())
	n.configure(more)
	if signal {
		n.hup()
	}
	n.awaitLog(from, reloaded)
}

// TestReload takes over a stub domain, a changed resolv.conf and a further redirect, and keeps the old configuration where
// the new one is bad.
func TestReload(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, attach: testutil.BridgeCNI, external: true})
	external := n.ExternalAddrs()
	stub := netip.AddrPortFrom(external[0], 5353)
	testutil.ServeDNS(t, n.ExternalNS, testutil.DNSConfig{Name: "STUB", Listen: []netip.AddrPort{stub}})
	other := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 53) // the neighbour
	testutil.ServeDNS(t, n.Neighbour, testutil.DNSConfig{Name: "OTHER", Listen: []netip.AddrPort{other}})

	n.write("resolv.conf", fmt.Sprintf("# the node's\nnameserver %s\nsearch example.org\n", external[0]))
	upstreams := fmt.Sprintf("upstreams: {external: [%q]}\n", n.path("resolv.conf"))
	n.configure(upstreams)
	n.startAgent()
	p := n.addPod(nil)
	want := func(who, zone string) {
		t.Helper()
		for _, at := range n.all() {
			testutil.Eventually(t, func() error {
				a, err := testutil.Ask(p.NetNS, at.server(), freshLabel()+zone, dns.TypeTXT, at.network, testutil.AskOptions{})
				if err == nil && (a.Who != who || p.client().direct(a)) {
					err = fmt.Errorf("%s%s: answered by %s for %s, want %s", at, zone, a.Who, a.Client, who)
				}
				return err
			})
		}
	}
	want("KUBEDNS", "svc.cluster.local.")
	want("EXTERNAL", "corp.example.")

	stubbed := upstreams + fmt.Sprintf("stubDomains: {corp.example: [%q]}\n", stub)
	n.reload(stubbed, true)
	want("STUB", "corp.example.")
	want("EXTERNAL", "example.org.")
	n.reload(upstreams, false)
	want("EXTERNAL", "corp.example.")
	n.reload(upstreams+"cache: {memoryMiB: 16}\n", true) // no part of the plan has it
	n.reload(upstreams, false)

	from := len(n.agent.Output())
	n.write("resolv.conf", fmt.Sprintf("nameserver %s\n", other.Addr()))
	n.awaitLog(from, reloaded)
	want("OTHER", "example.org.")

	n.refuses("resolv.conf", "resolv.conf", "nameserver nonsense\n", "resolv.conf:1")
	want("OTHER", "example.org.")
	from = len(n.agent.Output())
	n.write("resolv.conf", "# nobody\n")
	n.awaitLog(from, "without other upstreams, the cluster's servers are used")
	want("EXTERNAL", "example.org.") // by kube-dns
	n.write("resolv.conf", fmt.Sprintf("nameserver %s # again\n", other.Addr()))
	want("OTHER", "example.org.")
	good := n.read("node.yaml")
	n.refuses("NodeConfig", "node.yaml", good+"cache: {entries: 5}\n", "node.yaml:")
	want("KUBEDNS", "svc.cluster.local.")
	n.refuses("snippet", "node.yaml", good+"snippets: {\".\": nonsense}\n", "nonsense")
	want("KUBEDNS", "svc.cluster.local.")
	n.awaitReady()
	n.write("resolv.conf", fmt.Sprintf("nameserver %s\n", external[0]))
	n.write("node.yaml", good)
	want("EXTERNAL", "example.org.")

	n.addRedirect(upstreams)
}

// addRedirect gives the cluster a second cluster DNS address while the agent runs, and takes it away again.
func (n *node) addRedirect(upstreams string) {
	n.t.Helper()
	second := netip.MustParseAddr("10.96.0.20")
	n.Proxy.Add(secondService(second, n.KubeDNSAddrs()[0])...)
	redirects := func(addrs []netip.Addr) string { return "redirects: [" + strings.Join(quoted(addrs), ", ") + "]\n" }
	n.redirects = append(n.ClusterDNS(), second)
	n.reload(upstreams+redirects(n.redirects), true)
	p := n.addPod(nil)
	ats := append(n.all(), targets(second)...)
	n.wantSteered(p.client(), "second redirect", ats...)

	// Gone from the configuration, still in the pod: its queries go to kube-dns.
	n.reload(upstreams+redirects(n.ClusterDNS()), true)
	n.wantFallback(p.client(), "second redirect taken out", targets(second)...)
	n.wantSteered(p.client(), "second redirect taken out", n.all()...)
	n.kill()
	n.wantFallback(p.client(), "second redirect taken out, agent killed", ats...)
}

// refuses writes a bad file, and waits until the agent has refused it with a word that names the place.
func (n *node) refuses(what, file, text, place string) {
	n.t.Helper()
	from := len(n.agent.Output())
	n.write(file, text)
	n.hup()
	// It looks at each change and at each signal, so its report of the file before may still come.
	testutil.Eventually(n.t, func() error {
		output := n.agent.Output()[from:]
		right := slices.ContainsFunc(strings.Split(output, "\n"), func(line string) bool {
			return strings.Contains(line, refused) && strings.Contains(line, place)
		})
		return testutil.ErrorIf(!right, "bad %s: it is not refused with %q named:\n%s", what, place, output)
	})
}

func freshLabel() string { return fmt.Sprintf("label%d.", names.Add(1)) }

// TestReloadLosesNothing reloads twenty times while queries come, each of which is sent once.
func TestReloadLosesNothing(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeNF, config: calm})
	n.wantSteered(p.client(), "up", n.all()...)

	f := n.newTraffic(p, testutil.Attempt)
	var silent atomic.Int64
	for _, at := range n.all() {
		if at.network != "udp" {
			continue
		}
		c, hot, i := n.dial(p, at), freshName(), 0
		f.pace(10*time.Millisecond, 0, func() error {
			name := hot // what the cache holds, and every other time what it does not
			if i++; i%2 == 1 {
				name = freshName()
			}
			a, err := c.Ask(name, dns.TypeA)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			if a.Rcode() == "SERVFAIL" && name != hot {
				silent.Add(1) // kube-dns, in this process, was it, which the agent counts
				return nil
			}
			return rightData(a)
		})
	}
	from := len(n.agent.Output())
	for i := range 20 {
		n.reload(calm+fmt.Sprintf("stubDomains: {corp%d.example: [%q]}\n", i, n.KubeDNSAddrs()[0]), i%2 == 0)
		f.more(20) // else a slow machine queries little while it reloads
	}
	testutil.Equal(t, "a reload cost a lease", false, strings.Contains(n.agent.Output()[from:], "lease lost"))
	f.allAnswered()
	counted := regexp.MustCompile(`neardns_upstream_requests_total{.*result="silent".*} [1-9]`).MatchString(n.fetch("/metrics"))
	if silent.Load() > 0 && !counted || silent.Load() > 12 {
		t.Errorf("%d queries were SERVFAIL; kube-dns was silent: %t", silent.Load(), counted)
	}
}
