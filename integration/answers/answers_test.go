package answers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// own is a kube-dns with answers of its own outside of the cluster, in each way that is usual.
const own = `.:53 {
    errors
    rewrite name exact old.example.net www.example.net
    hosts {
        10.9.9.7 git.corp.example
        fallthrough
    }
    template ANY ANY ads.example {
        rcode NXDOMAIN
    }
    forward . /etc/resolv.conf
}
corp.local:53 {
    errors
    file /etc/coredns/db.corp.local
}
stub.example:53 {
    errors
    forward . 198.51.100.53:5353
}
`

// names are queried in every case: the cluster's, those of own, and some that do not exist.
func names() []question {
	return append(a("kubernetes.default.svc.cluster.local.", "nothing.default.svc.cluster.local.", "www.corp.local.", "no.corp.local.", "corp.local.", "git.corp.example.",
		"old.example.net.", "www.example.net.", "tracker.ads.example.", "db.stub.example.", "www.example.org.", "rcode-3.example.org.", "rcode-5.example.org."),
		question{"10.0.96.10.in-addr.arpa.", dns.TypePTR}, question{"10.0.96.10.in-addr.arpa.", dns.TypePTR}, question{"corp.local.", dns.TypeSOA},
		question{"7.113.0.203.in-addr.arpa.", dns.TypePTR}, question{"git.corp.example.", dns.TypeAAAA},
		question{"KUBERNETES.Default.svc.cluster.LOCAL.", dns.TypeA}, question{"alias.default.svc.cluster.local.", dns.TypeA},
		question{"outside.default.svc.cluster.local.", dns.TypeA}, question{"headless.default.svc.cluster.local.", dns.TypeA},
		question{"_http._tcp.headless.default.svc.cluster.local.", dns.TypeSRV}, question{"headless.default.svc.cluster.local.", dns.TypeAAAA},
		question{"cluster.local.", dns.TypeNS}, question{"www.example.org.", dns.TypeTXT}, question{"www.example.org.", dns.TypeHTTPS})
}

// TestSameAnswersAsKubeDNS holds that steered pods get what others get, with the manifests' own NodeConfig, while kube-dns's
// Corefile is changed under them: the two tests "DNS configMap nameserver" of Kubernetes' own suite (Change stubDomain, Forward PTR
// lookup) among the changes. TestTimingSameAnswersAsKubeDNS counts what the changes cost.
func TestSameAnswersAsKubeDNS(t *testing.T) {
	t.Parallel()
	sameAnswersAsKubeDNS(t, func(*node) (stop func()) { return func() {} })
}

// sameAnswersAsKubeDNS has count count the losses while the Corefile changes.
func sameAnswersAsKubeDNS(t *testing.T, count func(*node) (stop func())) {
	n := newNode(t, own+cluster)
	n.start()
	n.wantSame("zones of kube-dns's own", names()...)
	n.await("external: kube-dns, because its Corefile has the plugin rewrite, line 3", "status")
	n.await("external: auto  # kube-dns, because its Corefile has the plugin rewrite, line 3", "config", "show")
	n.await("the agent and kube-dns give the same answers", "doctor")

	stop := count(n)
	n.configMap(usual + cluster)
	n.await("external: the node's resolvers, because kube-dns's Corefile forwards to them, too: forward . /etc/resolv.conf, line 6", "status")
	n.wantSame("with the usual Corefile", a("db.acme.local.", "www.usual.example.")...)
	testutil.Eventually(t, func() error { // an agent that got no CPU for a while is without its leases for some seconds
		who, err := testutil.Ask(n.steered.NetNS, n.Service(true), "who.example.", dns.TypeTXT, "udp", testutil.AskOptions{})
		return testutil.ErrorIf(err != nil || who.Client != n.HostAddrs()[0], "a name outside is asked from %v, not from the node: %w", who, err)
	})

	// Change stubDomain: db.acme.local is the resolver's first, then the stub's.
	n.configMap(usual + "acme.local:53 {\n    errors\n    forward . 198.51.100.53:5353\n}\n" + cluster)
	n.await("external: kube-dns, because its Corefile has the zone acme.local", "status")
	n.awaitSaid("db.acme.local.", dns.TypeA, "10.150.0.10")
	n.wantSame("with a stub domain", a("db.acme.local.", "www.acme.local.", "www2.usual.example.")...)

	// Forward PTR lookup: the address has no name at first.
	ptr := question{"7.113.0.203.in-addr.arpa.", dns.TypePTR}
	n.wantSame("before PTR questions are forwarded", ptr)
	n.configMap(usual + "113.0.203.in-addr.arpa:53 {\n    errors\n    forward . 198.51.100.53:5353\n}\n" + cluster)
	n.awaitSaid(ptr.name, ptr.kind, "www.acme.local.")
	n.await("external: the node's resolvers", "status") // the reverse zones are the cluster's in any case
	n.wantSame("with PTR questions forwarded", ptr)

	stop()

	// What is chosen by the operator stays, and doctor reports what it costs.
	n.configMap(own + cluster)
	n.configure(fmt.Sprintf("upstreams: {external: [%q]}\n", n.ExternalAddrs()[0]))
	n.await("external: the servers of the configuration", "status")
	for _, want := range []string{"answers      corp.local. SOA: the agent answers ", "answers      git.corp.example. A: the agent answers ", "answers 10.9.9.7"} {
		n.await(want, "doctor")
	}
}

// awaitSaid waits until both pods are told something of a name.
func (n *node) awaitSaid(name string, kind uint16, want string) {
	n.t.Helper()
	for _, pod := range []*testutil.Pod{n.plain, n.steered} {
		testutil.Eventually(n.t, func() error {
			answer, err := n.ask(pod, name, kind, way{"udp", 0})
			return testutil.ErrorIf(err != nil || !strings.Contains(answer, want), "%s: %q, %w; want %s", name, answer, err, want)
		})
	}
}

// TestConfigurationOfAnotherRelease has the agent meet a NodeConfig with keys that it does not know, and one with a fault: it
// starts with the one, keeps serving under the other, and says both.
func TestConfigurationOfAnotherRelease(t *testing.T) {
	t.Parallel()
	n := newNode(t, usual+cluster)
	const unknown = `cash: unknown key: write "cache"`
	n.configure("cash: {entries: 5}\npodDNS: {later: true}\n")
	n.start()
	n.wantSame("with keys of another release", a("kubernetes.default.svc.cluster.local.", "www.example.org.")...)
	if !strings.Contains(n.agent.Output(), "cash: unknown key: write") { // the log quotes the rest
		t.Errorf("the log lacks %s", unknown)
	}
	for _, tc := range []struct {
		code int
		args []string
		want []string
	}{
		{0, []string{"status"}, []string{"SERVING", unknown, "podDNS.later: unknown key"}},
		{0, []string{"config", "show"}, []string{unknown, "stateDir: " + n.path("run")}},
		{0, []string{"config", "show", "--format", "conflist-entry"}, []string{unknown, `"type": "neardns"`}}, // what the installer asks
		{2, []string{"config", "check"}, []string{unknown, "podDNS.later: unknown key"}},
	} {
		n.wantCommand("with an unknown key", tc.code, tc.args, tc.want...)
	}
	n.await(unknown, "doctor")

	from := len(n.agent.Output())
	n.configure("log: {queries: sometimes}\n")
	testutil.Eventually(t, func() error {
		return testutil.ErrorIf(!strings.Contains(n.agent.Output()[from:], "new configuration refused"), "the fault is not refused")
	})
	n.wantSame("with a faulty file", a("kubernetes.default.svc.cluster.local.", "www2.example.org.")...)
	const fault = `log.queries: "sometimes" is not known`
	n.wantCommand("with a faulty file", 3, []string{"status"}, fault, "169.254.20.11", "fault: configuration", "external: the node's resolvers")
	n.wantCommand("with a faulty file", 3, []string{"config", "show"}, fault, `queries: "off"`, "stateDir: "+n.path("run"))
	n.wantCommand("with a faulty file", 2, []string{"config", "check"}, fault)
	n.wantCommand("with a faulty file", 2, []string{"config", "show", "--format", "conflist-entry"}, fault)
	n.await("FAIL  config", "doctor")
	testutil.Must(t, n.agent.Terminate(testutil.Patience()))
	n.wantCommand("without an agent", 2, []string{"status"}, fault)
}

// wantCommand waits until a command ends and says as it should: an agent that got no CPU for a while is not ready for some seconds.
func (n *node) wantCommand(when string, code int, args []string, want ...string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		got, output := n.command(args...)
		if got != code {
			return fmt.Errorf("%s: %v ends with %d, want %d:\n%s", when, args, got, code, output)
		}
		for _, w := range want {
			if !strings.Contains(output, w) {
				return fmt.Errorf("%s: %v does not print %q:\n%s", when, args, w, output)
			}
		}
		return nil
	})
}
