package callers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// bare is a node with a main network that has made and ended a pod, as one looks before neardns comes to it.
func bare(t *testing.T, prepare ...func(*node)) *node {
	t.Helper()
	n := newNode(t, "ptp", "uninstall")
	testutil.Must(t, os.Remove(n.persistDir())) // the agent makes it
	for _, f := range prepare {
		f(n)
	}
	n.caller = newCRIO(n)
	n.mustTearDown(n.mustSetUp("before"))
	return n
}

func (n *node) cleanup() []string {
	return []string{made.Path("neardns-agent"), "cleanup", "--config", n.path("node.yaml"), "--cni-conf", n.cniConf()}
}

func (n *node) uninstall(more ...string) []string {
	return append([]string{made.Path("neardns-install"), "uninstall", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf(), "--cni-cache", n.cache()}, more...)
}

// The whole life: installed, pods made, taken out under them, pods ended. Then the node is as it was, to the byte: files with
// their modes and owners, links, addresses, routes, rules, settings, pins. In two cases the host's filter drops, so that rules of ours are
// in it, too.
func TestUninstallLeavesNoTrace(t *testing.T) {
	t.Parallel()
	drops := func(kind string) func(*node) {
		return func(n *node) {
			for _, family := range []string{"iptables", "ip6tables"} {
				program := family + "-" + kind
				n.Host.Run(program, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
				n.Host.Run(program, "-w", "-A", "INPUT", "-p", map[string]string{"iptables": "icmp", "ip6tables": "ipv6-icmp"}[family], "-j", "ACCEPT")
				n.Host.Run(program, "-w", "-P", "INPUT", "DROP")
			}
		}
	}
	for name, prepare := range map[string]func(*node){"nothing in the way": func(*node) {}, "iptables-nft drops": drops("nft"), "iptables-legacy drops": drops("legacy"), "back end iptables": iptablesBackEnd} {
		t.Run(name, func(t *testing.T) {
			n := bare(t, prepare)
			before := n.snapshot()
			n.installer("install")
			n.startAgent()
			a, b := n.mustSetUp("a"), n.mustSetUp("b")
			a.wantState(podfile.Steered, "")
			b.wantState(podfile.Steered, "")
			if same := n.snapshot(); len(same) <= len(before) {
				t.Errorf("installed, a node has %d things, before %d: what is compared here?", len(same), len(before))
			}

			// Out under the pods: their DNS goes on, and both programs say what is left and what for.
			out := n.Host.Run(n.uninstall()...)
			if want := "kept " + filepath.Join(n.cniBin(), "neardns") + ": pods that were made with it"; !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
			n.agent.Signal(unix.SIGTERM)
			<-n.agent.Exited()
			a.wantKubeDNS("c.cluster.local.")
			out = n.Host.Run(n.cleanup()...)
			if want := "(2 pod files): pods query kube-dns directly now"; !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
			a.wantKubeDNS("d.cluster.local.")
			for _, p := range []*pod{a, b} {
				if rules := p.Run("nft", "list", "ruleset"); strings.Contains(strings.ToLower(rules), "neardns") {
					t.Errorf("left in a pod:\n%s", rules)
				}
			}
			if out, err := n.Host.TryRun("", n.uninstall("--remove-binary")...); err == nil || !strings.Contains(err.Error(), "2 pods were made with it") {
				t.Errorf("the binary of living pods was taken: %v\n%s", err, out)
			}
			n.mustTearDown(a, b)
			n.Host.Run(n.uninstall("--remove-binary")...)
			n.identical(before)

			// And once more, where there is nothing.
			n.Host.Run(n.cleanup()...)
			n.Host.Run(n.uninstall("--remove-binary")...)
			n.identical(before)
		})
	}
}

// iptablesBackEnd has the node's rules kept by iptables, which stands in front of kube-proxy in that mode only.
func iptablesBackEnd(n *node) {
	n.t.Helper()
	n.Proxy.Remove()
	var services []testutil.Service
	for i, a := range n.ClusterDNS() {
		services = append(services, testutil.DNSService(a, n.KubeDNSAddrs()[i])...)
	}
	n.Proxy = testutil.InstallProxy(n.t, n.Host, testutil.IPTables, services...)
	// The first use of a table in a netns makes it, by whichever program, and iptables has no way to unmake one.
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, chain := range []string{"PREROUTING", "OUTPUT"} {
			n.Host.Run(program, "-w", "-t", "raw", "-A", chain, "-j", "RETURN")
			n.Host.Run(program, "-w", "-t", "raw", "-D", chain, "-j", "RETURN")
		}
		n.Host.Run(program, "-w", "-t", "mangle", "-A", "PREROUTING", "-j", "RETURN")
		n.Host.Run(program, "-w", "-t", "mangle", "-D", "PREROUTING", "-j", "RETURN")
	}
	n.write("node.yaml", testutil.ReadFile(n.t, n.path("node.yaml"))+"backend: iptables-nft\n")
}

// Every step killed at some point and done again comes to the same end; pods have their DNS throughout.
func TestUninstallKilled(t *testing.T) {
	t.Parallel()
	n := bare(t)
	before := n.snapshot()
	for _, delay := range []time.Duration{3, 10, 25, 50, 90} {
		delay *= time.Millisecond
		install := []string{made.Path("neardns-install"), "install", "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf(), "--nodeconfig", n.path("node.yaml")}
		n.Host.Start(install...).KillAfter(delay)
		n.Host.Run(install...)
		n.Host.Start(made.Path("neardns-agent"), "node", "--config", n.path("node.yaml")).KillAfter(3 * delay)
		n.startAgent()
		p := n.mustSetUp("killed")
		p.wantState(podfile.Steered, "")
		n.killAgent()
		for _, step := range [][]string{n.uninstall(), n.cleanup(), n.cleanup(), n.uninstall("--remove-binary")} {
			n.Host.Start(step...).KillAfter(delay)
			p.wantKubeDNS("b.cluster.local.")
		}
		n.Host.Run(n.uninstall()...)
		n.Host.Run(n.cleanup()...)
		p.wantKubeDNS("c.cluster.local.")
		n.mustTearDown(p)
		n.Host.Start(n.uninstall("--remove-binary")...).KillAfter(delay)
		n.Host.Run(n.uninstall("--remove-binary")...)
		n.identical(before)
	}
}
