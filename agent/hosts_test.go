package main

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	ownLines      = "127.0.0.1\tlocalhost\n127.0.1.1\tnode-1\n"
	hostsEnd      = "\tregistry.shop.svc registry.shop.svc.cluster.local # by neardns-agent hosts\n"
	registryLines = "10.96.0.5" + hostsEnd + "fd00:10:96::5" + hostsEnd
)

// hostsNode is a node with the role on it, and the kube-dns that it queries.
type hostsNode struct {
	t       *testing.T
	ns      *testutil.NetNS
	dir     string
	command []string
	kubeDNS *testutil.DNSServer
	running *testutil.Process
}

func newHostsNode(t *testing.T, bin string) *hostsNode {
	t.Helper()
	n := &hostsNode{t: t, ns: testutil.NewNS(t, "hosts"), dir: t.TempDir()}
	n.ns.Run("ip", "addr", "add", "10.96.0.10/32", "dev", "lo")
	n.kubeDNS = testutil.ServeDNS(t, n.ns, testutil.DNSConfig{Name: "KUBEDNS", Listen: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}, Strict: true, Records: []string{
		"kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1", "registry.shop.svc.cluster.local. 30 IN A 10.96.0.5",
		"registry.shop.svc.cluster.local. 30 IN AAAA fd00:10:96::5",
	}})
	text := head + "redirects: [10.96.0.10]\nclusterDomain: cluster.local\nhosts: {services: [shop/registry]}\nstateDir: " + n.dir + "/run\npersistDir: " + n.dir +
		"/lib\nlisten: {metrics: \"127.0.0.1:9263\", health: \"127.0.0.1:9264\"}\n"
	testutil.Must(t, errors.Join(os.Mkdir(n.dir+"/etc", 0o755), os.WriteFile(n.file(), []byte(ownLines), 0o644), os.WriteFile(n.dir+"/node.yaml", []byte(text), 0o644)))
	n.command = []string{bin, "hosts", "--config", n.dir + "/node.yaml", "--host-root", n.dir}
	n.start()
	n.becomes(ownLines + registryLines)
	return n
}

func (n *hostsNode) file() string { return n.dir + "/etc/hosts" }

func (n *hostsNode) start() {
	n.t.Helper()
	testutil.Must(n.t, os.MkdirAll(n.dir+"/run", 0o755))
	n.running = n.ns.Start(n.command...)
}

// reboot simulates a reboot: it starts the role again without the files that it stored below /run.
func (n *hostsNode) reboot() {
	n.t.Helper()
	n.running.Kill()
	testutil.Must(n.t, os.RemoveAll(n.dir+"/run"))
	n.start()
}

func (n *hostsNode) text() string {
	n.t.Helper()
	return testutil.ReadFile(n.t, n.file())
}

func (n *hostsNode) becomes(want string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		got := n.text()
		return testutil.ErrorIf(got != want, "the hosts file is\n%s\nwant\n%s\n%s", got, want, n.running.Output())
	})
}

// hostsProgram is the agent that make has just built, or builds it.
func hostsProgram(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(os.Getenv("NEARDNS_BUILT"), "neardns-agent") // what make has just built
	if !filepath.IsAbs(bin) {
		bin = filepath.Join(t.TempDir(), "neardns-agent")
		testutil.Build(t, bin, ".")
	}
	return bin
}

// hostsTroubles are the ways in which kube-dns fails to answer the role.
func hostsTroubles() map[string]func(n *hostsNode) {
	answer := func(f func(*dns.Msg)) testutil.Behaviour {
		return testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
			m := new(dns.Msg).SetReply(q.Msg)
			m.Authoritative = true
			f(m)
			return m
		}}
	}
	denies := answer(func(m *dns.Msg) { m.Rcode = dns.RcodeNameError })
	return map[string]func(n *hostsNode){
		"gone":             func(n *hostsNode) { n.kubeDNS.Stop() },
		"silent":           func(n *hostsNode) { n.kubeDNS.Behave(testutil.Behaviour{Drop: true}) },
		"SERVFAIL":         func(n *hostsNode) { n.kubeDNS.Behave(testutil.Behaviour{Rcode: dns.RcodeServerFailure}) },
		"another question": func(n *hostsNode) { n.kubeDNS.Behave(answer(func(m *dns.Msg) { m.Question[0].Name = "a.example." })) },
		"impossible addresses": func(n *hostsNode) {
			n.kubeDNS.Behave(answer(func(m *dns.Msg) {
				rr, _ := dns.NewRR(m.Question[0].Name + " 30 IN A 127.0.0.1")
				m.Answer = append(m.Answer, rr)
			}))
		},
		"wrong domain": func(n *hostsNode) { n.kubeDNS.Behave(denies) },
		"no network":   func(n *hostsNode) { n.ns.Run("ip", "addr", "del", "10.96.0.10/32", "dev", "lo") },
	}
}

// state returns the role's last record. It ends the test if there is none.
func (n *hostsNode) state(stateDir string) nodestate.Hosts {
	n.t.Helper()
	state, _, err := nodestate.HostsFile(stateDir).Read()
	testutil.Must(n.t, err)
	return state
}

// withSecond runs a second role for the same hosts file, which is not written while f waits. Another program's edit stays, and each line is
// there once.
func (n *hostsNode) withSecond(f func()) {
	n.t.Helper()
	text := testutil.ReadFile(n.t, n.dir+"/node.yaml")
	other := strings.NewReplacer(":9263", ":9273", ":9264", ":9274", n.dir+"/run", n.dir+"/run2").Replace(text)
	testutil.Must(n.t, errors.Join(os.Mkdir(n.dir+"/run2", 0o755), os.WriteFile(n.dir+"/other.yaml", []byte(other), 0o644)))
	var was, now unix.Stat_t
	testutil.Must(n.t, unix.Stat(n.file(), &was))
	second := n.ns.Start(n.command[0], "hosts", "--config", n.dir+"/other.yaml", "--host-root", n.dir)
	f()
	if err := unix.Stat(n.file(), &now); err != nil || now.Ctim != was.Ctim || n.text() != ownLines+registryLines {
		n.t.Errorf("it was written (%v):\n%s\n%s", err, n.text(), second.Output())
	}
	edited := ownLines + "192.0.2.1\tprinter\n"
	testutil.Must(n.t, os.WriteFile(n.file(), []byte(edited), 0o644))
	n.becomes(edited + registryLines)
}

// TestHostsInTrouble runs the role itself. In every trouble with kube-dns, and after a reboot during it, the file stays as it is, to the
// byte. If another program rewrites the file, its text stays and the lines come back. TestTimingHostsInTrouble has how long and at what
// cost.
func TestHostsInTrouble(t *testing.T) {
	testutil.RequireRoot(t)
	bin := hostsProgram(t)
	for name, trouble := range hostsTroubles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newHostsNode(t, bin)
			var was, now unix.Stat_t
			testutil.Must(t, unix.Stat(n.file(), &was))
			trouble(n)
			n.reboot()
			testutil.Eventually(t, func() error { // a whole round without a good answer
				s := n.state(n.dir + "/run")
				return testutil.ErrorIf(len(s.Services) != 1 || s.Services[0].Failed == "", "no round has failed: %+v", s)
			})
			if err := unix.Stat(n.file(), &now); err != nil || now.Ino != was.Ino || now.Ctim != was.Ctim || n.text() != ownLines+registryLines {
				t.Errorf("it was written (%v):\n%s\n%s", err, n.text(), n.running.Output())
			}
		})
	}
	t.Run("two of them", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		n.withSecond(func() {
			testutil.Eventually(t, func() error {
				s := n.state(n.dir + "/run2")
				return testutil.ErrorIf(len(s.Services) != 1 || s.Services[0].Answered.IsZero(), "the second one has no answer: %+v", s)
			})
		})
	})
	t.Run("faulty configuration", func(t *testing.T) {
		t.Parallel()
		n := newHostsNode(t, bin)
		faulty := strings.Replace(testutil.ReadFile(t, n.dir+"/node.yaml"), "shop/registry", "registry.shop.svc", 1)
		testutil.Must(t, os.WriteFile(n.dir+"/node.yaml", []byte(faulty), 0o644))
		testutil.Eventually(t, func() error {
			output := n.running.Output()
			return testutil.ErrorIf(!strings.Contains(output, "not applied") || !strings.Contains(output, "hosts.services[0]"), "%s", output)
		})
		n.becomes(ownLines + registryLines)
	})
}
