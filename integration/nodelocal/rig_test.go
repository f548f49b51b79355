package nodelocal_test

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
)

// The addresses of NodeLocal DNSCache, and of the second Service behind it.
var (
	local4, local6       = netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")
	upstream4, upstream6 = netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:10:96::b")
)

// made are the agent and the stock CoreDNS.
var made = programs.Of("neardns-agent", "coredns")

func TestMain(m *testing.M) { made.Main(m) }

// node is a node whose clients name NodeLocal DNSCache's addresses.
type node struct {
	*testutil.Node
	t   *testing.T
	dir string
	// onLink are the cluster DNS addresses that the manifest puts on the link, too; none with kube-proxy in IPVS mode.
	onLink  []netip.Addr
	backend string // what the agent is told by -backend; "" nothing
	bare    bool   // its kernel has no nf_tables, as far as the containers see
	alone   bool   // its containers' environment names no Service
	pods    int
}

func newNode(t *testing.T, o testutil.Options) *node {
	t.Helper()
	testutil.RequireRoot(t)
	made.Make(t)
	o.External, o.Name, o.Attach = true, "nodelocal", testutil.PTP
	n := &node{Node: testutil.NewNode(t, o), t: t, dir: t.TempDir()}
	n.onLink = n.ClusterDNS()
	for _, a := range n.KubeDNSAddrs() {
		services := testutil.DNSService(n.upstream(a.Is4()), a)
		for i := range services {
			services[i].Name = "kube-dns-upstream"
		}
		n.Proxy.Add(services...)
	}
	n.write("resolv.conf", "nameserver "+n.ExternalAddrs()[0].String()+"\n")
	n.write("kube-dns/.keep", "")
	n.template(n.manifest().corefile)
	return n
}

func (n *node) upstream(is4 bool) netip.Addr {
	if is4 {
		return upstream4
	}
	return upstream6
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) { n.t.Helper(); testutil.WriteFile(n.t, n.path(name), text) }

func (n *node) template(text string) { n.t.Helper(); n.write("coredns/Corefile.base", text) }

// manifest is what of the published manifest a node sees, filled in as its instructions say.
type manifest struct {
	args     []string
	corefile string
	health   struct { // what the kubelet's liveness probe asks
		Host, Path string
		Port       int
	}
}

// object is as much of a manifest's object as is looked at.
type object struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Args          []string
					LivenessProbe struct {
						HTTPGet struct {
							Host, Path string
							Port       int
						}
					}
				}
			}
		}
	}
}

func (n *node) manifest() manifest {
	n.t.Helper()
	text := testutil.ReadFile(n.t, "testdata/nodelocaldns.yaml")
	// The instructions' sed, for kube-proxy in iptables mode. A container's /tmp is its own, which here is the test's folder.
	filled := strings.NewReplacer("__PILLAR__LOCAL__DNS__", n.locals()[0].String(), "__PILLAR__DNS__SERVER__", n.onLink[0].String(),
		"__PILLAR__DNS__DOMAIN__", "cluster.local", `"/tmp/`, `"`+n.dir+"/").Replace(text)
	var m manifest
	for doc := range strings.SplitSeq(filled, "\n---\n") {
		var o object
		testutil.Must(n.t, yaml.Unmarshal([]byte(doc), &o))
		switch o.Kind {
		case "ConfigMap":
			m.corefile = o.Data["Corefile"]
		case "DaemonSet":
			c := o.Spec.Template.Spec.Containers[0]
			m.args, m.health = c.Args, c.LivenessProbe.HTTPGet
		}
	}
	return m
}

func (n *node) locals() []netip.Addr {
	var out []netip.Addr
	for _, a := range n.ClusterDNS() {
		out = append(out, map[bool]netip.Addr{true: local4, false: local6}[a.Is4()])
	}
	return out
}

// served are the addresses that the manifest of a node has.
func (n *node) served() []netip.Addr { return []netip.Addr{n.locals()[0], n.onLink[0]} }

//go:embed testdata/container.sh
var containerScript string

// container runs a program as the manifest's container: the files that are mounted, capabilities as a runtime grants them, no
// other program's files, and /proc/sys read-only. The command line is the image's entry point and the manifest's arguments.
func (n *node) container(name string, args ...string) *testutil.Process {
	n.t.Helper()
	line := []string{"--mount", "sh", "-c", containerScript, "sh"}
	if n.bare {
		self, err := os.Executable()
		testutil.Must(n.t, err)
		line = append(line, self)
	}
	cmd := exec.Command("unshare", append(append(line, made.Path(name)), args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DIR=" + n.dir}
	if !n.alone {
		cmd.Env = append(cmd.Env, "KUBE_DNS_SERVICE_HOST="+n.ClusterDNS()[0].String(), "KUBE_DNS_UPSTREAM_SERVICE_HOST="+n.upstream(n.ClusterDNS()[0].Is4()).String())
	}
	if n.bare {
		cmd.Env = append(cmd.Env, envBare+"=1")
	}
	p := n.Host.StartAgentCmd(cmd)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("%s output:\n%s", name, p.Output())
		}
	})
	return p
}

// agent runs ours as the manifest would, its image changed; more are arguments next to the manifest's.
func (n *node) agent(more ...string) *testutil.Process {
	n.t.Helper()
	args := n.manifest().args
	if n.backend != "" {
		args = append(args, "-backend", n.backend)
	}
	return n.container("neardns-agent", append(args, more...)...)
}

// serve is agent, and waits until it serves under all of its leases.
func (n *node) serve(more ...string) *testutil.Process {
	n.t.Helper()
	p := n.agent(more...)
	n.awaitLeases(p, n.served()...)
	return p
}

// serveBothFamilies is serve for a manifest that names local and cluster DNS addresses of both families, which it returns.
func (n *node) serveBothFamilies() (p *testutil.Process, all []netip.Addr) {
	n.t.Helper()
	all = append(n.locals(), n.ClusterDNS()...)
	var list []string
	for _, a := range all {
		list = append(list, a.String())
	}
	n.template(strings.ReplaceAll(n.manifest().corefile, "bind "+local4.String(), "bind "+strings.Join(list, " ")))
	args := n.manifest().args
	args[slices.Index(args, "-localip")+1] = strings.Join(list, ",")
	if n.backend != "" {
		args = append(args, "-backend", n.backend)
	}
	p = n.container("neardns-agent", append(args, "-fallback", upstream6.String())...)
	n.awaitLeases(p, all...)
	return p, all
}

// cleanup runs the agent's command, after which nothing is left.
func (n *node) cleanup(when string, flags ...string) {
	n.t.Helper()
	if p := n.container("neardns-agent", append([]string{"cleanup"}, flags...)...); p.Wait() != nil {
		n.t.Fatalf("cleanup, %s: %s", when, p.Output())
	}
	n.wantNothing(when + ", after cleanup")
}

// file reads a file as a container has it.
func (n *node) file(p *testutil.Process, path string) string {
	n.t.Helper()
	return testutil.ReadFile(n.t, fmt.Sprintf("/proc/%d/root%s", p.PID(), path))
}

// awaitLeases waits until the agent serves under all of its leases.
func (n *node) awaitLeases(p *testutil.Process, addresses ...netip.Addr) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		select {
		case <-p.Exited():
			n.t.Fatalf("the agent ended: %v\n%s", p.Wait(), p.Output())
		default:
		}
		for _, a := range addresses {
			for _, protocol := range []string{"udp", "tcp"} {
				if !strings.Contains(p.Output(), fmt.Sprintf("msg=\"lease granted\" addr=%s protocol=%s", a, protocol)) {
					return fmt.Errorf("no lease for %s over %s:\n%s", a, protocol, p.Output())
				}
			}
		}
		return nil
	})
}

// awaitLog waits until a process has logged text, after the first bytes of its log.
func (n *node) awaitLog(p *testutil.Process, after int, text string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		output := p.Output()[after:]
		return testutil.ErrorIf(!strings.Contains(output, text), "it does not print %q:\n%s", text, output)
	})
}

// iptables is the program that this node's others use.
func (n *node) iptables() string {
	if strings.HasPrefix(n.backend, "iptables-") {
		return n.backend
	}
	return "iptables"
}

// stock starts a stock CoreDNS as node-cache would have it: link, rules, Corefile, in the same order.
func (n *node) stock() *testutil.Process {
	n.t.Helper()
	nodelocal.InstallBy(n.Host, n.iptables(), n.served()...)
	n.write("stock/Corefile", nodelocal.Corefile(n.locals()[0], n.onLink[0], n.upstream(n.locals()[0].Is4())))
	p := n.Host.Start(made.Path("coredns"), "-conf", n.path("stock/Corefile"))
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("stock CoreDNS output:\n%s", p.Output())
		}
	})
	return p
}

// pod adds a pod.
func (n *node) pod() *testutil.Pod {
	n.t.Helper()
	n.pods++
	return n.AddPod(fmt.Sprintf("pod%d", n.pods))
}

var serial atomic.Int64

// fresh is a name that no client has queried yet.
func fresh() string { return fmt.Sprintf("name%d.default.svc.cluster.local.", serial.Add(1)) }

// cached reports whether a name that was queried twice was queried at kube-dns once.
func cached(from *testutil.NetNS, at netip.Addr, network string) error {
	name := fresh()
	first, err := ask(from, at, name, network)
	if err != nil {
		return err
	}
	second, err := ask(from, at, name, network)
	if err != nil {
		return err
	}
	if first.Serial != second.Serial {
		return fmt.Errorf("%s over %s: %w, want a cache's answer", at, network, errAskedTwice)
	}
	return nil
}

var errAskedTwice = errors.New("kube-dns was asked twice")

// direct reports whether kube-dns answers itself.
func direct(from *testutil.NetNS, at netip.Addr, network string) error {
	err := cached(from, at, network)
	if err == nil {
		return fmt.Errorf("%s over %s: a cache answered, want kube-dns", at, network)
	}
	if errors.Is(err, errAskedTwice) {
		return nil
	}
	return err
}

func ask(from *testutil.NetNS, at netip.Addr, name, network string) (*testutil.Answer, error) {
	a, err := testutil.Ask(from, netip.AddrPortFrom(at, 53), name, dns.TypeA, network, testutil.AskOptions{EDNS: 1232})
	if err != nil {
		return nil, fmt.Errorf("%s over %s: %w", at, network, err)
	}
	if a.Rcode() != "NOERROR" || a.Who != "KUBEDNS" && a.Who != "EXTERNAL" {
		return nil, fmt.Errorf("%s over %s: %s", at, network, a)
	}
	return a, nil
}

// all sends queries at every address over both protocols, until the first answer that is not as it should be.
func (n *node) all(from *testutil.NetNS, check func(*testutil.NetNS, netip.Addr, string) error, addresses ...netip.Addr) error {
	for _, a := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			if err := check(from, a, network); err != nil {
				return err
			}
		}
	}
	return nil
}

// each waits until every address is answered as it should be over both protocols.
func (n *node) each(from *testutil.NetNS, when string, check func(*testutil.NetNS, netip.Addr, string) error, addresses ...netip.Addr) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		err := n.all(from, check, addresses...)
		return testutil.ErrorIf(err != nil, "%s: %w", when, err)
	})
}
