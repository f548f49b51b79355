package answers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
)

var made = programs.Of("neardns", "neardns-agent", "coredns")

func TestMain(m *testing.M) { made.Main(m) }

// node is a node with CoreDNS as kube-dns, a resolver outside, and two pods: one that the plugin steers, and one next to it.
type node struct {
	*testutil.Node
	t              *testing.T
	dir            string
	kubeDNS, agent *testutil.Process
	steered, plain *testutil.Pod
	outside, stub  *testutil.DNSServer // the node's resolver, and one for a stub domain's zone
	maps           int                 // contents that the ConfigMap had
}

// cluster is what CoreDNS has in place of the plugin kubernetes, which wants an API server.
const cluster = `
cluster.local:53 {
    errors
    file /etc/coredns/db.cluster.local
}
in-addr.arpa:53 {
    errors
    file /etc/coredns/db.in-addr.arpa
}
`

// zones are the other files of the ConfigMap.
func zones() map[string]string {
	const top = "@ 5 IN SOA ns admin 1 7200 1800 86400 5\n@ 5 IN NS ns\nns 5 IN A 10.9.9.1\n"
	const names = "kubernetes.default.svc 5 IN A 10.96.0.1\nalias.default.svc 5 IN CNAME kubernetes.default.svc\n" +
		"outside.default.svc 5 IN CNAME www.example.org.\n"
	var headless strings.Builder // its addresses do not fit in 512 bytes, and its ports not in 1,232
	for i := range 40 {
		fmt.Fprintf(&headless, "headless.default.svc 5 IN A 10.244.3.%d\n_http._tcp.headless.default.svc 5 IN SRV 0 1 80 ep%[1]d.headless\n", i)
	}
	return map[string]string{
		"db.cluster.local": "$ORIGIN cluster.local.\n" + top + names + headless.String(),
		"db.in-addr.arpa":  "$ORIGIN in-addr.arpa.\n" + top + "10.0.96.10 5 IN PTR kube-dns.kube-system.svc.cluster.local.\n",
		"db.corp.local":    "$ORIGIN corp.local.\n" + top + "www 5 IN A 10.9.9.9\n",
	}
}

// usual is what kubeadm writes, for all other names.
const usual = `.:53 {
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    prometheus 127.0.0.1:9153
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    loop
    loadbalance
}
`

// container runs a program with files of its own at /etc: those of the ConfigMap coredns where each of them has it, and the
// node's resolv.conf as the kubelet copies it.
const container = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /etc
mkdir /etc/coredns /etc/kube-dns-corefile
mount --bind "$DIR/coredns" /etc/coredns
mount --bind "$DIR/coredns" /etc/kube-dns-corefile
cp "$DIR/resolv.conf" /etc/resolv.conf
exec "$@"
`

func newNode(t *testing.T, corefile string) *node {
	t.Helper()
	testutil.RequireRoot(t)
	made.Make(t)
	n := &node{t: t, dir: t.TempDir()}
	n.Node = testutil.NewNode(t, testutil.Options{Proxy: testutil.NFTables, Attach: testutil.PTP, External: true, NoDNS: true, Name: "answers"})
	out := n.ExternalAddrs()[0]
	n.outside = testutil.ServeDNS(t, n.ExternalNS, testutil.DNSConfig{Name: "OUTSIDE", Listen: []netip.AddrPort{netip.AddrPortFrom(out, 53)}, TTL: 2})
	n.stub = testutil.ServeDNS(t, n.ExternalNS, testutil.DNSConfig{Name: "STUB", Listen: []netip.AddrPort{netip.AddrPortFrom(out, 5353)}, TTL: 2, Records: []string{
		"db.stub.example. 2 IN A 10.150.0.9", "db.acme.local. 2 IN A 10.150.0.10", "7.113.0.203.in-addr.arpa. 2 IN PTR www.acme.local.",
	}})
	for s, address := range map[*testutil.DNSServer]string{n.outside: "203.0.113.1", n.stub: "10.150.0.1"} {
		// By itself it has another address for each query.
		s.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
			m := s.Answer(q)
			for _, rr := range m.Answer {
				if rr, ok := rr.(*dns.A); ok && (s == n.outside || !strings.HasPrefix(q.Name, "db.")) {
					rr.A = net.ParseIP(address)
				}
			}
			return m
		}})
	}
	n.write("resolv.conf", fmt.Sprintf("nameserver %s\n", out))
	n.configMap(corefile)
	n.kubeDNS = n.run(n.KubeDNS, made.Path("coredns"), "-conf", "/etc/coredns/Corefile")
	n.plain, n.steered = n.AddPod("plain"), n.AddPod("steered")
	n.configure("")
	testutil.Must(t, programs.Add(made.Dir(), n.Host, n.steered, "steered", n.path("cache"), map[string]any{
		"redirects": n.ClusterDNS(), "stateDir": n.path("run"), "persistDir": n.path("lib"), "steer": "always",
	}))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-dns's log:\n%s", n.kubeDNS.Output())
			if n.agent != nil {
				t.Logf("the agent's log:\n%s", n.agent.Output())
			}
		}
	})
	return n
}

// configMap gives the mounted ConfigMap another content, as the kubelet does: a new folder, to which one link is swapped.
func (n *node) configMap(corefile string) {
	n.t.Helper()
	n.maps++
	version := fmt.Sprintf("..%d", n.maps)
	files := zones()
	files["Corefile"] = corefile
	folder := n.path("coredns")
	for name, text := range files {
		n.write("coredns/"+version+"/"+name, text)
		if n.maps == 1 {
			testutil.Must(n.t, os.Symlink("..data/"+name, folder+"/"+name))
		}
	}
	testutil.Must(n.t, errors.Join(os.Symlink(version, folder+"/..data_tmp"), os.Rename(folder+"/..data_tmp", folder+"/..data")))
	if n.kubeDNS == nil {
		return
	}
	from := len(n.kubeDNS.Output())
	n.kubeDNS.Signal(unix.SIGUSR1) // its plugin reload looks every 30 s
	testutil.Eventually(n.t, func() error {
		output := n.kubeDNS.Output()[from:]
		return testutil.ErrorIf(!strings.Contains(output, "Reloading complete"), "kube-dns did not reload:\n%s", output)
	})
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) { n.t.Helper(); testutil.WriteFile(n.t, n.path(name), text) }

// configure writes the NodeConfig of install/base, with this node's folders and addresses, and what a test adds.
func (n *node) configure(more string) {
	n.t.Helper()
	n.write("node.yaml", programs.NodeConfig(n.t, fmt.Sprintf(
		"redirects: [%s]\nclusterDomain: cluster.local\nlocalAddresses: []\nstateDir: %s\npersistDir: %s\n%s", n.ClusterDNS()[0], n.path("run"), n.path("lib"), more)))
}

// run starts a program in a namespace, with the files of its container.
func (n *node) run(ns *testutil.NetNS, args ...string) *testutil.Process {
	n.t.Helper()
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", container, "sh"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DIR=" + n.dir}
	return ns.StartCmd(cmd)
}

// start starts the agent and waits until it serves under all of its leases.
func (n *node) start() {
	n.t.Helper()
	n.agent = n.run(n.Host, made.Path("neardns-agent"), "node", "--config", n.path("node.yaml"))
	testutil.Eventually(n.t, func() error {
		_, text := n.command("status")
		return testutil.ErrorIf(!strings.HasPrefix(text, "SERVING"), "the agent is not ready:\n%s", text)
	})
}

// command runs one of the agent's commands with the same files and returns its exit code and its output.
func (n *node) command(args ...string) (code int, output string) {
	n.t.Helper()
	p := n.run(n.Host, append(append([]string{made.Path("neardns-agent")}, args...), "--config", n.path("node.yaml"))...)
	return p.ExitCode(testutil.Patience()), p.Output()
}

// await waits until a command of the agent's says a text.
func (n *node) await(text string, args ...string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		code, output := n.command(args...)
		return testutil.ErrorIf(!strings.Contains(output, text), "%v (exit code %d) does not print %q:\n%s", args, code, text, output)
	})
}

// way is how a query is sent.
type way struct {
	network string
	edns    uint16
}

// ask is what a pod gets for a name, in words that do not show from which server: the code, and the records without TTLs. How many are left
// in an answer that is cut is each server's own choice.
func (n *node) ask(pod *testutil.Pod, name string, kind uint16, by way) (string, error) {
	at, options := netip.AddrPortFrom(n.ClusterDNS()[0], 53), testutil.AskOptions{EDNS: by.edns}
	answer, err := testutil.Ask(pod.NetNS, at, name, kind, by.network, options)
	if err != nil {
		return "", err
	}
	if answer.Msg.Truncated {
		return answer.Rcode() + " cut", nil
	}
	var records []string
	for _, rr := range slices.Concat(answer.Msg.Answer, answer.Msg.Ns) {
		rr.Header().Ttl = 0
		records = append(records, strings.Join(strings.Fields(strings.ToLower(rr.String())), " "))
	}
	slices.Sort(records)
	return answer.Rcode() + " " + strings.Join(records, ", "), nil
}

// wantSame asks both pods in each way, and so what the cache has, too. It fails unless they get the same.
func (n *node) wantSame(when string, questions ...question) {
	n.t.Helper()
	for _, q := range questions {
		for _, by := range []way{{"udp", 0}, {"udp", 1232}, {"tcp", 0}} {
			var want, got string
			var err, err2 error
			testutil.Eventually(n.t, func() error { // a resolver in this process may be silent for too long
				want, err = n.ask(n.plain, q.name, q.kind, by)
				got, err2 = n.ask(n.steered, q.name, q.kind, by)
				return testutil.ErrorIf(strings.HasPrefix(want, "SERVFAIL") || strings.HasPrefix(got, "SERVFAIL"), "%v: %q, %q", q, want, got)
			})
			if err = errors.Join(err, err2); err != nil || got != want {
				n.t.Errorf("%s: %s %s %v: a steered pod gets %q, one next to it %q, %v", when, q.name, dns.TypeToString[q.kind], by, got, want, err)
			}
		}
	}
}

// question is a name and what is asked for it.
type question struct {
	name string
	kind uint16
}

func a(names ...string) (out []question) {
	for _, name := range names {
		out = append(out, question{name, dns.TypeA})
	}
	return out
}
