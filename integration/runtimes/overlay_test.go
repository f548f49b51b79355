package runtimes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestOverlays shows what becomes of overlays on pods' DNS settings by each runtime, as the pods see it themselves.
func TestOverlays(t *testing.T) {
	for _, c := range releases() {
		t.Run(c.Name, func(t *testing.T) {
			version, err := c.Version(t.Context())
			testutil.Must(t, err)
			t.Logf("%s is %s", c.Name, version)
			n := newNode(t, c)
			defer n.clean()
			n.write("node.yaml", fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: NodeConfig
clusterDomain: cluster.local
redirects: [%q, %q]
localAddresses: []
upstreams: {external: []}
stateDir: %s
persistDir: %s
podDNS:
  options: ["timeout:3", "ndots:4"]
  namespaces:
    shop: {searches: [more.example], options: ["ndots:2"]}
    other: {options: ["ndots:9"]}
resolvConf:
  paths: ["%s/root/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf"]
  nri: %s/nri.sock
`, n.ClusterDNS()[0], n.ClusterDNS()[1], n.stateDir(), n.persistDir(), n.dir, n.dir))
			n.install()
			n.startAgent()
			method := podfile.MethodFile
			if c.Dir != "" {
				method = podfile.MethodNRI
				n.awaitOverlay(t, method)
			}
			n.part(t, "levels", func(t *testing.T) { n.testLevels(t, method) })
			n.part(t, "faults", func(t *testing.T) { n.testFaults(t, method) })
			n.part(t, "agent away", func(t *testing.T) { n.testAway(t, method) })
			n.part(t, "agent hung", func(t *testing.T) { n.testHung(t, method) })
			n.wantNoFiles(t)
		})
	}
}

// settings is the content of a pod's own resolv.conf, keyword by keyword.
func (n *node) settings(t *testing.T, p *pod) string {
	t.Helper()
	text, err := n.exec(p, "resolvconf")
	testutil.Must(t, err)
	return text
}

// awaitOverlay waits until the agent is connected to a runtime that has only started to listen.
func (n *node) awaitOverlay(t *testing.T, method podfile.Method) {
	t.Helper()
	testutil.Eventually(t, func() error {
		p := n.mustRunPod(n.spec("early"))
		defer n.mustRemove(p)
		d := n.file(p).DNS
		return testutil.ErrorIf(d.State != podfile.Overlaid || d.Method != method, "%+v", d)
	})
}

// The settings stand when the runtime reports that the pod runs: nothing is awaited here.
func (n *node) testLevels(t *testing.T, method podfile.Method) {
	cluster := n.ClusterDNS()[0].String()
	const search = "search shop.svc.cluster.local svc.cluster.local cluster.local more.example"
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        []string
		state       podfile.State
	}{
		"plain":  {nil, []string{search, "nameserver " + cluster, "options ndots:2 timeout:3"}, podfile.Steered},
		"params": {map[string]string{"neardns.io/dns-params": "search:\n- pod.example\noptions:\n- name: ndots\n  value: 1\n- name: edns0\n"}, []string{search + " pod.example", "nameserver " + cluster, "options ndots:1 timeout:3 edns0"}, podfile.Steered},
		"custom": {map[string]string{"neardns.io/dns-params": `{"policy": "Custom", "nameservers": ["192.0.2.53"], "search": ["a.b"]}`}, []string{"search a.b", "nameserver 192.0.2.53"}, podfile.LeftAlone},
	} {
		s := n.spec(name)
		s.annotations = tc.annotations
		p := n.mustRunPod(s)
		text := n.settings(t, p)
		testutil.Equal(t, name+": the pod reads", tc.want, strings.Split(strings.TrimSuffix(text, "\n"), "\n"))
		f := n.file(p)
		if f.DNS.State != podfile.Overlaid || f.DNS.Method != method || !strings.HasPrefix(f.DNS.Path, n.dir) {
			t.Errorf("%s: %+v", name, f.DNS)
		}
		// Where the file comes after ADD, a pod that has the cluster's nameserver by then is steered, which costs nothing.
		if want := tc.state; method == podfile.MethodFile || want == podfile.Steered {
			n.wantState(p, want)
		}
		if tc.state == podfile.Steered {
			n.wantCached(p, name+".cluster.local")
		}
		n.mustRemove(p)
	}
}

// Whatever is written for a pod, it starts; what was not done is in its file.
func (n *node) testFaults(t *testing.T, method podfile.Method) {
	s := n.spec("faults")
	s.annotations = map[string]string{"neardns.io/dns-params": "- options:\n  - name: ndots\n  - value: 1\n", "neardns.io/kernel-hits": "yes", "neardns.io/steer": "perhaps"}
	p := n.mustRunPod(s)
	f := n.file(p)
	if len(f.Ignored) != 3 || f.DNS.Method != method {
		t.Errorf("ignored %+v, dns %+v", f.Ignored, f.DNS)
	}
	if text := n.settings(t, p); !strings.Contains(text, "options ndots:2 timeout:3") {
		t.Errorf("the pod reads %s", text)
	}
	out, _ := n.Host.TryRun("", product("neardns-agent"), "doctor", "--config", n.path("node.yaml"), "--cni-conf", n.cniConf(), "--cni-bin", n.cniBin()) // whatever else it finds
	if !strings.Contains(out, "neardns.io/dns-params") || !strings.Contains(out, "shop/faults") {
		t.Errorf("doctor does not tell of what was ignored:\n%s", out)
	}
	n.mustRemove(p)
}

// Without an agent the file method works as ever; where the agent is the method, the pod starts with what the kubelet gave it and
// is caught up with.
func (n *node) testAway(t *testing.T, method podfile.Method) {
	n.killAgent()
	p := n.mustRunPod(n.spec("away"))
	before := n.settings(t, p)
	testutil.Equal(t, "without the agent the pod reads "+before, method == podfile.MethodFile, strings.Contains(before, "ndots:2"))
	if d := n.file(p).DNS; method == podfile.MethodNRI && d.State != podfile.Waiting {
		t.Errorf("%+v", d)
	}
	n.startAgent()
	testutil.Eventually(t, func() error {
		text := n.settings(t, p)
		return testutil.ErrorIf(!strings.Contains(text, "options ndots:2 timeout:3"), "the pod reads %s", text)
	})
	n.mustRemove(p)
}

// An agent that hangs holds up the runtime for its own timeout (2 s) and no pod beyond that.
func (n *node) testHung(t *testing.T, method podfile.Method) {
	n.agent.Signal(unix.SIGSTOP)
	p := n.mustRunPod(n.spec("hung"))
	q := n.mustRunPod(n.spec("next"))
	n.agent.Signal(unix.SIGCONT)
	for _, p := range []*pod{p, q} {
		testutil.Eventually(t, func() error {
			d := n.file(p).DNS
			return testutil.ErrorIf(d.State != podfile.Overlaid || d.Method != method, "%+v", d)
		})
		n.mustRemove(p)
	}
}

// podmanConf is Podman with the CNI back end, and all of its files in the test's folder.
const podmanConf = `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
cni_plugin_dirs = ["%[1]s/bin"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["%[1]s/bin"]
network_config_dir = "%[1]s/net.d"
`

// TestPodman shows the method that is in CNI's result: Podman 4 with the CNI back end puts it into a container's resolv.conf.
func TestPodman(t *testing.T) {
	testutil.RequireRoot(t)
	n := &node{Node: testutil.NewNode(t, testutil.Options{Families: testutil.IPv4, Name: "podman"}), t: t, dir: t.TempDir()}
	podman := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(context.Background(), "podman", append([]string{"--root", n.path("storage"), "--runroot", n.path("runroot"), "--tmpdir", n.path("tmp"), "--storage-driver", "vfs"}, args...)...)
		cmd.Env = append(cmd.Environ(), "CONTAINERS_CONF="+n.path("containers.conf"), "HOME="+n.dir)
		p := n.Host.StartCmd(cmd)
		if err := p.Wait(); err != nil {
			t.Fatalf("podman %s: %v\n%s", strings.Join(args, " "), err, p.Output())
		}
		return p.Output()
	}
	t.Cleanup(func() {
		// A container's monitor runs Podman once more, behind everybody's back.
		testutil.Eventually(t, func() error {
			return errors.Join(removeControlGroups("neardns-podman"), os.RemoveAll(n.path("storage")))
		})
	})
	n.prepare()
	testutil.Must(t, os.Symlink(product("neardns"), filepath.Join(n.cniBin(), "neardns"))) // what the installer does
	n.write("containers.conf", fmt.Sprintf(podmanConf, n.dir))
	n.write("net.d/10-main.conflist", fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "main",
  "plugins": [
    {"type": "bridge", "bridge": "ndpodman0", "isGateway": true,
     "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "neardns", "redirects": [%q], "steer": "always", "stateDir": %q, "persistDir": %q,
     "dns": {"nameservers": [%[3]q, "192.0.2.53"], "searches": ["one.example", "two.example"], "options": ["ndots:2"]}}
  ]
}
`, n.path("ipam"), n.PodRange(true), n.ClusterDNS()[0], n.stateDir(), n.persistDir()))
	podman("load", "--input", buildImage(t, n.dir))
	text := podman("run", "--rm", "--cgroup-parent", "/neardns-podman", "--cgroups", "no-conmon", "--network", "main", podImage, "resolvconf")
	for _, want := range []string{"search one.example two.example", "nameserver " + n.ClusterDNS()[0].String(), "nameserver 192.0.2.53"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(n.stateDir(), "pods", "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
