package nodelocal_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// What the manifest's files and ports show: the filled-in Corefile, health and metrics; a changed template
// is taken over within moments and the cache outlives it; a bad one changes nothing.
func TestReload(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
	pod := n.pod()
	m := n.manifest()
	m.corefile = strings.Replace(m.corefile, "success 9984 30", "success 9984 3600", 1)
	n.template(m.corefile)
	p := n.serve("-syncinterval", "60ns")
	if !strings.Contains(p.Output(), "-syncinterval 60ns is read as 1m0s") {
		t.Error("no note that the flag is read as node-cache reads it")
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(m.health.Host), uint16(m.health.Port)).String()
	n.wantPage("http://"+at+m.health.Path, "OK")
	n.wantPage("http://127.0.0.1:9253/metrics", "coredns_plugin_enabled")
	n.wantPage("http://127.0.0.1:9353/metrics", `coredns_nodecache_setup_errors_total{errortype="iptables"} 0`)
	for _, want := range []string{"cluster.local:53 {", "forward . " + upstream4.String() + " {\n            force_tcp", "forward . " + n.ExternalAddrs()[0].String() + ":53\n", "health 169.254.20.10:8080"} {
		if text := n.file(p, "/etc/Corefile"); !strings.Contains(text, want) || strings.Contains(text, "__PILLAR__") {
			t.Errorf("the Corefile lacks %q:\n%s", want, text)
		}
	}

	kept := "ttl-3000." + fresh()
	n.each(pod.NetNS, "serving", cached, n.served()...)
	var first *testutil.Answer
	testutil.Eventually(t, func() (err error) { // from the cache, as no other has the same serial twice
		if first, err = ask(pod.NetNS, local4, kept, "udp"); err != nil {
			return err
		}
		a, err := ask(pod.NetNS, local4, kept, "udp")
		return testutil.ErrorIf(err != nil || a.Serial != first.Serial, "%v, %w", a, err)
	})
	stillKept := func(when string) {
		t.Helper()
		testutil.Eventually(t, func() error { // kube-dns gives each answer another serial
			a, err := ask(pod.NetNS, local4, kept, "udp")
			return testutil.ErrorIf(err != nil || a.Serial != first.Serial, "%s, the cache was lost: %v, %w", when, a, err)
		})
	}
	reloaded := func(how func()) {
		t.Helper()
		said := len(p.Output())
		how()
		n.awaitLog(p, said, "configuration reloaded")
	}

	// A server block more.
	reloaded(func() {
		n.template(m.corefile + "\nmade.example:53 {\n    template IN A {\n        answer \"{{ .Name }} 60 IN A 192.0.2.99\"\n    }\n}\n")
	})
	stillKept("after a changed template")
	testutil.Eventually(t, func() error {
		out := n.dig("x.made.example")
		return testutil.ErrorIf(out != "192.0.2.99", "the new block answers %q", out)
	})

	// The kube-dns ConfigMap: a stub domain, and other servers for the rest.
	reloaded(func() {
		n.write("kube-dns/stubDomains", fmt.Sprintf(`{"corp.example": ["%s"]}`, n.KubeDNSAddrs()[0]))
	})
	reloaded(func() { n.write("kube-dns/upstreamNameservers", fmt.Sprintf(`["%s"]`, n.KubeDNSAddrs()[0])) })
	stillKept("after a stub domain")
	for _, name := range []string{"a.corp.example.", "a.outside.test."} {
		testutil.Eventually(t, func() error {
			_, err := ask(pod.NetNS, local4, name, "udp")
			return errors.Join(err, testutil.ErrorIf(n.DNS.Asked(name) == 0, "kube-dns got no query for %s", name))
		})
	}
	if text := n.file(p, "/etc/Corefile"); !strings.Contains(text, "corp.example:53 {\n    errors\n    cache 30\n    forward . "+n.KubeDNSAddrs()[0].String()+":53\n") {
		t.Errorf("the stub domain is not in the Corefile:\n%s", text)
	}

	// Imports are sought next to the file of -conf, as node-cache has them, which is not where the template is mounted.
	n.template(m.corefile + "\nimport coredns/*.server\n")
	testutil.Eventually(t, func() error {
		text := n.file(p, "/etc/Corefile")
		return testutil.ErrorIf(!strings.Contains(text, "\nimport /etc/coredns/*.server\n"), "the import is not seen:\n%s", text)
	})
	block := func(answer string) string {
		return "imported.example {\n    template IN A {\n        answer \"{{ .Name }} 60 IN A " + answer + "\"\n    }\n}\n"
	}
	for _, answer := range []string{"192.0.2.97", "192.0.2.98"} { // a file that comes, and one that changes
		n.write("coredns/a.server", block(answer))
		testutil.Eventually(t, func() error {
			out := n.dig("x.imported.example")
			return testutil.ErrorIf(out != answer, "the imported block answers %q", out)
		})
	}
	stillKept("after an import")

	// What is wrong changes nothing, is reported and counted.
	said := len(p.Output())
	n.template(strings.Replace(m.corefile, "errors", "nonsense", 1))
	n.awaitLog(p, said, "new configuration refused; the old one keeps serving")
	n.awaitLog(p, said, "Unknown directive 'nonsense'")
	n.wantPage("http://127.0.0.1:9353/metrics", `coredns_nodecache_setup_errors_total{errortype="configmap"} 1`)
	stillKept("after a bad template")
	n.each(pod.NetNS, "after a bad template", cached, n.served()...)

	// By a signal, as node-cache reloads with -reloadwithsignal.
	reloaded(func() { n.template(m.corefile); p.Signal(syscall.SIGUSR1) })
	stillKept("after SIGUSR1")
}

// dig sends one query from the host and returns the answer's data, or what dig prints in its place.
func (n *node) dig(name string) string {
	out, _ := n.Host.TryRun("", append([]string{"dig", "+short", "@" + local4.String(), name}, testutil.DigOnce...)...)
	return strings.TrimSpace(out)
}

// wantPage asks for a page from the host until it has a text.
func (n *node) wantPage(url, text string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		page, err := n.Host.Get(url)
		if err == nil && !strings.Contains(page, text) {
			err = fmt.Errorf("%s lacks %q", url, text)
		}
		return err
	})
}

// Where the node's resolv.conf names systemd-resolved's stub, which the container shares the loopback with, the stub is queried.
func TestStubResolver(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
	stub := netip.MustParseAddrPort("127.0.0.53:53")
	resolver := testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "EXTERNAL", Listen: []netip.AddrPort{stub}})
	n.write("resolv.conf", "nameserver "+stub.Addr().String()+"\noptions edns0 trust-ad\n")
	n.serve()
	pod := n.pod()
	testutil.Eventually(t, func() error {
		name := fresh() + "outside.test."
		_, err := ask(pod.NetNS, local4, name, "udp")
		return testutil.ErrorIf(err != nil || resolver.Asked(name) == 0, "%w; the stub was asked %d times", err, resolver.Asked(name))
	})
}

// A node that begins with a template or a kube-dns ConfigMap that cannot be used leaves queries to kube-dns until the file is corrected.
func TestStartsWithoutTemplate(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.IPTables})
	pod := n.pod()
	good := n.manifest().corefile
	n.template(strings.Replace(good, "errors", "nonsense", 1))
	n.write("kube-dns/stubDomains", "[]")
	p := n.agent()
	n.awaitLog(p, 0, "Unknown directive 'nonsense'")
	testutil.Eventually(t, func() error { return direct(pod.NetNS, local4, "udp") })
	n.each(pod.NetNS, "a bad template at the start", direct, n.served()...)
	n.template(good)
	n.awaitLog(p, 0, "write it as")
	n.each(pod.NetNS, "a bad ConfigMap at the start", direct, n.served()...)
	n.write("kube-dns/stubDomains", "{}")
	n.awaitLeases(p, n.served()...)
	n.each(pod.NetNS, "mended", cached, n.served()...)
}
