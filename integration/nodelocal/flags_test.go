package nodelocal_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// addressesOn lists the addresses of a link of the host.
func (n *node) addressesOn(link string) []string {
	n.t.Helper()
	var out []string
	for line := range strings.Lines(n.Host.Run("ip", "-o", "address", "show", "dev", link)) {
		out = append(out, strings.Fields(line)[3])
	}
	slices.Sort(out)
	return out
}

func (n *node) hasLink(name string) bool {
	_, err := n.Host.Netlink().LinkByName(name)
	return err == nil
}

// The flags about the interface: whose it is, its name, and what is left at the end.
func TestInterfaceFlags(t *testing.T) {
	want := []string{"10.96.0.10/32", "169.254.20.10/32"}
	for _, c := range []struct {
		name, link string
		args       []string
		stays      bool
		foreign    bool
	}{
		{"node-cache's default", nodelocal.Link, nil, false, false},
		{"-interfacename", "dns7", []string{"-interfacename", "dns7"}, false, false},
		{"-skipteardown", nodelocal.Link, []string{"-skipteardown"}, true, false},
		{"-setupinterface=false", "own0", []string{"-setupinterface=false"}, true, true},
		{"-setupiptables=false", nodelocal.Link, []string{"-setupiptables=false"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
			pod := n.pod()
			if c.foreign {
				n.Host.Bridge(c.link)
				for _, a := range n.served() {
					n.Host.AddAddr(c.link, testutil.Host(a))
				}
			}
			p := n.serve(c.args...)
			if got := n.addressesOn(c.link); !slices.Equal(got, want) && !c.foreign {
				t.Errorf("addresses %v, want %v", got, want)
			}
			if c.foreign && n.hasLink(nodelocal.Link) {
				t.Error("a link was made that is somebody else's to make")
			}
			n.each(pod.NetNS, "serving", cached, n.served()...)
			testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
			if n.hasLink(c.link) != c.stays {
				t.Errorf("after the end the link is there: %t, want %t", !c.stays, c.stays)
			}
			n.each(pod.NetNS, "ended", direct, n.served()...)
			n.each(n.Host, "ended, from the host", direct, n.served()...)
		})
	}
}

// With kube-proxy in IPVS mode the manifest leaves the cluster DNS address out. And where no second Service is known, kube-dns
// itself is queried.
func TestLocalAddressAlone(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.IPTables})
	pod := n.pod()
	n.template(strings.ReplaceAll(n.manifest().corefile, " "+n.onLink[0].String(), ""))
	p := n.container("neardns-agent", "-localip", local4.String(), "-conf", "/etc/Corefile", "-upstreamsvc", "another")
	n.awaitLeases(p, local4)
	if !strings.Contains(p.Output(), "gets the queries") {
		t.Error("that kube-dns is asked in the Service's place is not said")
	}
	n.each(pod.NetNS, "by the local address", cached, local4)
	n.each(pod.NetNS, "by the cluster DNS address", direct, n.onLink[0])
	p.Kill()
	n.each(pod.NetNS, "killed", direct, local4, n.onLink[0])
}

// A template that names kube-dns by number needs no variable of the environment: node-cache is run so in namespaces of its own.
func TestTemplateNamesUpstream(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.IPTables})
	n.alone = true
	pod := n.pod()
	if p := n.agent(); p.Wait() == nil || !strings.Contains(p.Output(), "name kube-dns's address with -fallback") {
		t.Errorf("nobody is named:\n%s", p.Output())
	}
	n.template(strings.ReplaceAll(n.manifest().corefile, "__PILLAR__CLUSTER__DNS__", upstream4.String()))
	p := n.serve()
	n.awaitLog(p, 0, "since the template forwards the cluster's names to it")
	n.each(pod.NetNS, "serving", cached, n.served()...)
	p.Kill()
	n.each(pod.NetNS, "killed", direct, n.served()...)
}

// Both families in one -localip, which node-cache refuses.
func TestBothFamilies(t *testing.T) {
	for _, c := range append(onIPTables(testutil.Dual), cell{testutil.Dual, testutil.NFTables, ""}) {
		t.Run(c.String(), func(t *testing.T) { bothFamilies(t, c.node(t)) })
	}
}

func bothFamilies(t *testing.T, n *node) {
	pod := n.pod()
	p, all := n.serveBothFamilies()
	n.each(pod.NetNS, "serving", cached, all...)
	p.Kill()
	n.each(pod.NetNS, "killed", direct, all...)
}

// Flags that end at once, and those that are refused, change nothing. TestBadFlags (agent/internal/config/nodecache) has every refusal.
func TestFlagsThatEnd(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables})
	for _, c := range []struct {
		args, want string
		code       int
	}{{"nodecache -plugins", "\ntemplate\n", 0}, {"-localip 10.96.0.10 -upstreamsvc kube-dns", "would query itself", 2}} {
		p := n.container("neardns-agent", strings.Fields(c.args)...)
		if code := p.ExitCode(testutil.Patience()); code != c.code || !strings.Contains(p.Output(), c.want) {
			t.Errorf("%v: exit code %d, want %d, and %q in:\n%s", c.args, code, c.code, c.want, p.Output())
		}
	}
	n.wantNothing("flags that end")
	if n.hasLink(nodelocal.Link) {
		t.Error("flags that end: a link was made")
	}
}

// exec runs a command in a container, as kubectl exec does.
func (n *node) exec(p *testutil.Process, words ...string) (string, error) {
	return n.Host.TryRun("", append([]string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.PID()), "env", "KUBE_DNS_SERVICE_HOST=" + n.ClusterDNS()[0].String(), made.Path(words[0])}, words[1:]...)...)
}
