//go:build images

package podman

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// bits are those of the agent's capabilities in linux/capability.h.
var bits = map[string]uint{"NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39}

var local4 = netip.MustParseAddr("169.254.20.10")

// node is a node whose agent comes from an image.
type node struct {
	*testutil.Node
	t   *testing.T
	dir string
}

func newNode(t *testing.T) *node {
	t.Helper()
	testutil.RequireRoot(t)
	n := &node{t: t, dir: t.TempDir(), Node: testutil.NewNode(t, testutil.Options{Proxy: testutil.NFTables, Attach: testutil.PTP, Name: "images"})}
	for _, d := range []string{"run", "lib", "pod", "etc", "net.d"} {
		testutil.Must(t, os.Mkdir(filepath.Join(n.dir, d), 0o755))
	}
	for name, text := range map[string]string{"etc/nodeconfig.yaml": nodeConfig, "xtables.lock": ""} {
		testutil.Must(t, os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600))
	}
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// agent is the agent's container, run as install/base has it.
func (n *node) agent(image string, add ...string) container {
	return container{image: image, add: add, name: "agent-" + strconv.Itoa(int(n.Host.Inode())),
		mounts: []string{n.path("run") + ":/run/neardns", n.path("lib") + ":/var/lib/neardns", n.path("pod") + ":/run/pod", n.path("etc") + ":/etc/neardns:ro",
			n.path("xtables.lock") + ":/run/xtables.lock", n.path("net.d") + ":/host/etc/cni/net.d:ro"},
		command: []string{"node", "--config=/etc/neardns/nodeconfig.yaml", "--pod-dir=/run/pod"}}
}

// awaitReady waits until the readiness probe of install/base succeeds.
func (n *node) awaitReady(c container, p *testutil.Process) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		if out, err := c.exec("/bin/neardns-agent", "ready", "--pod-dir=/run/pod"); err != nil {
			return fmt.Errorf("%w: %s\n%s", err, out, p.Output())
		}
		return nil
	})
}

// awaitLog waits until the agent has reported each part.
func (n *node) awaitLog(p *testutil.Process, parts ...string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		for _, part := range parts {
			if !strings.Contains(p.Output(), part) {
				return fmt.Errorf("the agent did not print %q:\n%s", part, p.Output())
			}
		}
		return nil
	})
}

// answered queries the local address from a pod: the answer must come from the agent's cache or its upstream.
func (n *node) answered(pod *testutil.Pod) {
	n.t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		round := 0
		// A starved agent may have lost a lease for a moment, and kube-dns answers then.
		testutil.Eventually(n.t, func() error {
			round++
			name := fmt.Sprintf("%s%d.default.svc.cluster.local.", network, round)
			for range 3 {
				testutil.WantWho(n.t, "KUBEDNS", pod.NetNS, netip.AddrPortFrom(local4, 53), name, network)
			}
			if asked := n.DNS.Asked(name); asked != 1 {
				return fmt.Errorf("three questions over %s reached kube-dns %d times: the cache did not answer", network, asked)
			}
			return nil
		})
	}
}

// confinement reads from the kernel how the agent's process is confined.
func (n *node) confinement(c container) (effective uint64, seccomp string, rootOptions string) {
	n.t.Helper()
	out, err := podman("inspect", "--format", "{{.State.Pid}}", c.name)
	if err != nil {
		n.t.Fatal(err, out)
	}
	proc := filepath.Join("/proc", strings.TrimSpace(out))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	mounts, mountErr := os.ReadFile(filepath.Join(proc, "mounts"))
	testutil.Must(n.t, errors.Join(err, mountErr))
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "CapEff":
			if effective, err = strconv.ParseUint(value, 16, 64); err != nil {
				n.t.Fatal(err)
			}
		case "Seccomp":
			seccomp = value
		}
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "/" {
			rootOptions = f[3]
		}
	}
	return effective, seccomp, rootOptions
}

// Both images serve, confined as the manifest has it; only one of them can keep rules in iptables.
func TestAgent(t *testing.T) {
	for name, image := range map[string]string{"agent": agentImage, "slim": slimImage} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c := n.agent(image, capabilitiesOf(t, "base/agent")...)
			p := c.start(t, n.Host)
			n.awaitReady(c, p)
			n.answered(n.AddPod("pod"))
			effective, seccomp, root := n.confinement(c)
			var want uint64
			for _, name := range c.add {
				want |= 1 << bits[name]
			}
			if effective != want || seccomp != "2" || !strings.HasPrefix(root, "ro") {
				t.Errorf("capabilities %#x, seccomp %s, root %s", effective, seccomp, root)
			}
			status, err := c.exec("/bin/neardns-agent", "status", "--config=/etc/neardns/nodeconfig.yaml")
			doctor, _ := c.exec("/bin/neardns-agent", "doctor", "--config=/etc/neardns/nodeconfig.yaml", "--cni-conf=/host/etc/cni/net.d")
			const lacks = "iptables-nft, ip6tables-nft, iptables-legacy, ip6tables-legacy: the agent cannot add rules where the policy of their filter table is DROP"
			for what, text := range map[string]string{"log": p.Output(), "status": status, "doctor": doctor} {
				if strings.Contains(text, lacks) != (image == slimImage) {
					t.Errorf("%s (%v):\n%s", what, err, text)
				}
			}
			if err := p.Terminate(testutil.Patience()); err != nil {
				t.Errorf("told to end: %v\n%s", err, p.Output())
			}
		})
	}
}

// Where the host's filter drops, the agent lets its addresses through, in either iptables; without the programs it reports what
// is to be done, and kube-dns answers.
func TestFilterDrops(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		for name, image := range map[string]string{"agent": agentImage, "slim": slimImage} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				n := newNode(t)
				pod := n.AddPod("pod")
				n.Host.Run("iptables-"+kind, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
				n.Host.Run("iptables-"+kind, "-w", "-P", "INPUT", "DROP")
				c := n.agent(image, capabilitiesOf(t, "base/agent")...)
				p := c.start(t, n.Host)
				if image == slimImage {
					n.awaitLog(p, "iptables-"+kind+" is not installed on this node", "accept udp and tcp port 53 for 169.254.20.10, 169.254.20.11 there yourself")
					testutil.WantWho(t, "KUBEDNS", pod.NetNS, netip.AddrPortFrom(local4, 53), "slim.default.svc.cluster.local.", "udp")
					return
				}
				n.awaitReady(c, p)
				n.answered(pod)
				if rules := n.Host.Run("iptables-"+kind, "-S"); !strings.Contains(rules, "NEARDNS-INPUT") {
					t.Errorf("the rules are not in iptables-%s:\n%s", kind, rules)
				}
				c.end(t)
				c.name, c.add = "cleanup-"+c.name, capabilitiesOf(t, "uninstall/cleanup")
				c.command = []string{"cleanup", "--config=/etc/neardns/nodeconfig.yaml", "--cni-conf=/host/etc/cni/net.d"}
				if code, out := c.run(t, n.Host); code != 0 {
					t.Errorf("cleanup: exit code %d\n%s", code, out)
				}
				if rules := n.Host.Run("iptables-"+kind, "-S"); strings.Contains(rules, "NEARDNS") {
					t.Errorf("cleanup left rules in iptables-%s:\n%s", kind, rules)
				}
			})
		}
	}
}

// The programs by their plain names are those of the iptables that the host's kubelet uses.
func TestIptables(t *testing.T) {
	testutil.RequireRoot(t)
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			ns := testutil.NewNS(t, "images")
			ns.Run("iptables-"+kind, "-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			for _, program := range []string{"iptables-save", "ip6tables-save"} {
				c := container{image: agentImage, add: []string{"NET_ADMIN", "NET_RAW"}, flags: []string{"--entrypoint", program, "--volume", lockFile(t) + ":/run/xtables.lock"}}
				c.command = []string{"--version"}
				want := map[string]string{"nft": "(nf_tables)", "legacy": "(legacy)"}[kind]
				if code, out := c.run(t, ns); code != 0 || !strings.Contains(out, want) {
					t.Errorf("%s: exit code %d:\n%s", program, code, out)
				}
			}
			c := container{image: agentImage, add: []string{"NET_ADMIN", "NET_RAW"}, flags: []string{"--entrypoint", "iptables", "--volume", lockFile(t) + ":/run/xtables.lock"},
				command: []string{"-w", "-t", "nat", "-A", "OUTPUT", "-d", "192.0.2.1", "-p", "udp", "-m", "udp", "--dport", "53", "-m", "comment", "--comment", "x", "-j", "RETURN"}}
			if code, out := c.run(t, ns); code != 0 {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			if rules := ns.Run("iptables-"+kind, "-t", "nat", "-S", "OUTPUT"); !strings.Contains(rules, "192.0.2.1/32") {
				t.Errorf("the rule is not in iptables-%s:\n%s", kind, rules)
			}
		})
	}
}

func lockFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "xtables.lock")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	return file
}

// The agent cannot do its work without each of its capabilities, but for those of kernel hits: without them it answers all hits itself.
func TestAgentNeedsEachCapability(t *testing.T) {
	says := map[string]string{
		"NET_ADMIN":        "operation not permitted",
		"NET_BIND_SERVICE": "a port below 1024 needs CAP_NET_BIND_SERVICE",
		"SYS_ADMIN":        "netns: operation not permitted",
	}
	for _, name := range capabilitiesOf(t, "base/agent") {
		t.Run(name, func(t *testing.T) {
			if name == "NET_RAW" {
				bypass(t, false)
				return
			}
			n := newNode(t)
			c := n.agent(agentImage, without(capabilitiesOf(t, "base/agent"), name)...)
			if name == "BPF" || name == "PERFMON" {
				testutil.Must(t, os.WriteFile(n.path("etc/nodeconfig.yaml"), []byte(nodeConfig+"kernelHits: {mode: auto}\n"), 0o600))
				p := c.start(t, n.Host)
				n.awaitReady(c, p)
				n.awaitLog(p, "kernel hits are off until a retry succeeds")
				return
			}
			p := c.start(t, n.Host)
			n.awaitLog(p, cmp.Or(says[name], "a text that this test does not know"))
			if out, err := c.exec("/bin/neardns-agent", "ready", "--pod-dir=/run/pod"); err == nil {
				t.Errorf("ready without it: %s\n%s", out, p.Output())
			}
		})
	}
}

// With all of them, a pod whose queries the host drops is given back to kube-dns.
func TestAgentPassesPodsBy(t *testing.T) { bypass(t, true) }

// bypass has a pod query whose queries to the agent are dropped. Only a packet in the pod's name reaches the switch, which takes
// CAP_NET_RAW.
func bypass(t *testing.T, raw bool) {
	t.Helper()
	n := newNode(t)
	pod := n.AddPod("pod")
	n.Host.RunInput("table inet foreign { chain input { type filter hook input priority 0; ip saddr "+pod.Addr(true).String()+" udp dport 53 drop; }; }\n", "nft", "-f", "-")
	capabilities := capabilitiesOf(t, "base/agent")
	if !raw {
		capabilities = without(capabilities, "NET_RAW")
	}
	c := n.agent(agentImage, capabilities...)
	p := c.start(t, n.Host)
	n.awaitReady(c, p)
	const lacks = "needs CAP_NET_RAW"
	testutil.Eventually(t, func() error {
		_, err := testutil.Ask(pod.NetNS, netip.AddrPortFrom(local4, 53), "dropped.default.svc.cluster.local.", dns.TypeTXT, "udp", testutil.AskOptions{Timeout: testutil.Silence})
		switch said := strings.Contains(p.Output(), lacks); {
		case raw && said, !raw && err == nil:
			t.Fatalf("answered: %v, said %q: %v\n%s", err == nil, lacks, said, p.Output())
		case raw:
			return err
		case !said:
			return fmt.Errorf("the agent did not print %q:\n%s", lacks, p.Output())
		}
		return nil
	})
}
