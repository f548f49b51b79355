package nodelocal_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// without is the manifest's arguments but for some flags and their values.
func (n *node) without(flags ...string) []string {
	n.t.Helper()
	args := n.manifest().args
	for _, f := range flags {
		at := slices.Index(args, f)
		args = slices.Delete(args, at, at+2)
	}
	return args
}

// Flags that say where something is, each told another place than its default, at which nothing usable is; and some others.
func TestPlaceFlags(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
	n.write("elsewhere/Corefile.base", strings.NewReplacer("prometheus :9253", "prometheus __PILLAR__PROMETHEUS__ENDPOINT__", ":53 {", " {").Replace(n.manifest().corefile))
	n.write("elsewhere/kube-dns/stubDomains", fmt.Sprintf(`{"elsewhere.example": ["%s"]}`, n.KubeDNSAddrs()[0]))
	n.template("nonsense {")
	n.write("kube-dns/stubDomains", `{"default.example": ["192.0.2.1"]}`)
	p := n.container("neardns-agent", append(n.without("-conf"), "-basecorefile", n.path("elsewhere/Corefile.base"), "-kubednscm", n.path("elsewhere/kube-dns"), "-conf", n.path("elsewhere/Corefile"),
		"-metrics-listen-address", "127.0.0.1:9663", "-prometheus-listen-address", "127.0.0.1:9553", "-cachememory", "7", "-nofastpath",
		"-dns.port", "53", "-quiet", "-reloadwithsignal")...)
	n.awaitLeases(p, n.served()...)
	n.each(n.pod().NetNS, "blocks without a port, -dns.port 53", cached, n.served()...)
	n.wantPage("http://127.0.0.1:9663/metrics", "coredns_nodecache_setup_errors_total")
	n.wantPage("http://127.0.0.1:9553/metrics", "coredns_plugin_enabled")
	n.wantPage("http://127.0.0.1:9553/metrics", "neardns_cache_limit_bytes 7.340032e+06")
	text := testutil.ReadFile(t, n.path("elsewhere/Corefile"))
	if !strings.Contains(text, "elsewhere.example:53 {") || strings.Contains(text, "default.example") {
		t.Errorf("-conf, -kubednscm: the Corefile is\n%s", text)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/etc/Corefile", p.PID())); err == nil {
		t.Error("-conf: /etc/Corefile was written, too")
	}
	if strings.Contains(p.Output(), "note=") {
		t.Error("-quiet: something is said of flags")
	}
	// -corefile is for those who leave -conf out.
	testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
	p = n.container("neardns-agent", append(n.without("-conf"), "-basecorefile", n.path("elsewhere/Corefile.base"), "-corefile", n.path("elsewhere/other"))...)
	n.awaitLeases(p, n.served()...)
	n.awaitLog(p, 0, "node-cache ignores the flag")
	if text := testutil.ReadFile(t, n.path("elsewhere/other")); !strings.Contains(text, "default.example:53 {") {
		t.Errorf("-corefile: the Corefile is\n%s", text)
	}
	p.Kill()
	p = n.agent("-log-format", "json")
	n.awaitLog(p, 0, `"msg":"back end of the packet rules chosen"`)
}

// What the kubelet asks at -health-port is not tracked, in either direction; what is queried at another port of the same address is.
func TestHealthPort(t *testing.T) {
	for _, c := range append(onIPTables(testutil.IPv4), cell{testutil.IPv4, testutil.NFTables, ""}, cell{testutil.IPv6, testutil.NFTables, ""}) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			m := n.manifest()
			n.template(strings.ReplaceAll(m.corefile, ":8080", ":8099"))
			n.serve("-health-port", "8099")
			at := func(port uint16) string { return "http://" + netip.AddrPortFrom(n.locals()[0], port).String() }
			n.wantPage(at(8099)+"/health", "OK")
			n.wantPage(at(9353)+"/metrics", "coredns_nodecache_setup_errors_total")
			if len(testutil.ConntrackOf(n.Host, 9353)) == 0 {
				t.Error("no connection of the node's own is tracked: this shows nothing")
			}
			if lines := testutil.ConntrackOf(n.Host, 8099); len(lines) > 0 {
				t.Errorf("what the kubelet asks is tracked: %q", lines)
			}
		})
	}
}

// -syncinterval bounds how late the agent sees what no event reports: iptables-legacy's policies. -setupiptables=false leaves these to
// others.
func TestIptablesFlags(t *testing.T) {
	for _, c := range []struct {
		args  []string
		wants bool
	}{{[]string{"-syncinterval", "1"}, true}, {[]string{"-syncinterval", "1", "-setupiptables=false"}, false}} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
			p := n.serve(c.args...)
			// Everything passes still, so no lease is lost, which would be seen at once.
			for _, words := range []string{"-A INPUT -j ACCEPT", "-P INPUT DROP"} {
				n.Host.Run(append([]string{"iptables-legacy", "-w"}, strings.Fields(words)...)...)
			}
			rules := func() bool { return strings.Contains(n.Host.Run("iptables-legacy-save"), "NEARDNS-INPUT") }
			if c.wants {
				testutil.Eventually(t, func() error { // the least that a default would be is 30 s
					return testutil.ErrorIf(!rules(), "a policy of DROP is not seen: -syncinterval has no effect")
				})
				return
			}
			// A restart looks at it at once.
			p.Kill()
			p = n.serve(c.args...)
			n.awaitLog(p, 0, "fallback verified")
			if rules() {
				t.Errorf("-setupiptables=false: rules were written into iptables:\n%s", n.Host.Run("iptables-legacy-save"))
			}
		})
	}
	// Where there is no nf_tables, the switch cannot be had without iptables.
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.IPTables, Legacy: true})
	n.bare = true
	p := n.agent("-setupiptables=false")
	code, out := p.ExitCode(testutil.Patience()), p.Output()
	if code != 1 || !strings.Contains(out, "not supported by this kernel") || strings.Contains(out, "iptables back end") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	n.wantNothing("without nf_tables and -setupiptables=false")
}
