//go:build cilium

package steering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// envCilium is the folder with cilium-agent, cilium-cni and Cilium's bpf folder, which `make test-cilium` fills.
const envCilium = "NEARDNS_CILIUM"

// ciliumStart bounds Cilium's start and its first compilation.
const ciliumStart = 3 * time.Minute

// ciliums are Cilium's two ways in kube-proxy's place: pods' queries are translated at their sockets, or at their links. The host's own
// sockets are translated in both.
func ciliums() []datapath {
	return []datapath{
		{"at sockets", func(n *node) *pod {
			p := n.startCilium("false").addOldPod()
			p.wantCilium(n.KubeDNSAddrs()[0])
			return p
		}},
		{"at links", func(n *node) *pod {
			p := n.startCilium("true").addOldPod()
			p.wantCilium(n.ClusterDNS()[0])
			return p
		}},
	}
}

// wantCilium fails unless Cilium's program is at the pod's link, and the pod's sockets for the cluster DNS address lead to peer.
func (p *pod) wantCilium(peer netip.Addr) {
	n := p.node
	n.t.Helper()
	testutil.Must(n.t, n.wantProgram(p.hostLink(n)))
	c := dialUDP(n.t, p.NetNS, netip.AddrPortFrom(n.ClusterDNS()[0], 53))
	defer c.Close()
	if sockets := p.Run("ss", "-Hnu"); !strings.Contains(sockets, " "+netip.AddrPortFrom(peer, 53).String()) {
		n.t.Fatalf("the pod's sockets do not lead to %s:\n%s", peer, sockets)
	}
}

// TestCilium: next to Cilium's datapath hits are answered at the pod's link, and everything else is Cilium's.
func TestCilium(t *testing.T) {
	for _, d := range ciliums() {
		t.Run(d.name, func(t *testing.T) { hitsBeside(t, d) })
	}
}

// TestCiliumFaults: next to Cilium's datapath no query is lost, whatever becomes of our agent.
func TestCiliumFaults(t *testing.T) {
	for _, d := range ciliums() {
		t.Run(d.name, func(t *testing.T) { faultsBeside(t, d) })
	}
}

// wantProgram returns an error where no program is at a link of the host's.
func (n *node) wantProgram(name string) error {
	count, err := n.programsAt(name)
	return errors.Join(err, testutil.ErrorIf(count == 0, "no program is at %s", name))
}

// startCilium has Cilium be the node's network, without an API server: its Services come from a file. hostOnly is "true" where pods'
// sockets are left alone. What it attaches to sockets is bounded by a cgroup, which this process enters; the files that pin it, and all
// else that it keeps, are in a mount namespace of its own. It may not set what is the whole machine's.
func (n *node) startCilium(hostOnly string) *node {
	n.t.Helper()
	dir := os.Getenv(envCilium)
	if dir == "" {
		n.t.Skip("no Cilium was built: make test-cilium")
	}
	testutil.Must(n.t, os.CopyFS(n.path("cilium/bpf"), os.DirFS(filepath.Join(dir, "bpf")))) // the agent writes in it
	n.write("services.json", n.services())
	n.enterCgroup()
	socket := n.path("cilium.sock")
	flags := map[string]string{
		"enable-k8s": "false", "identity-allocation-mode": "crd", "lb-state-file": n.path("services.json"), "socket-path": socket,
		"lib-dir": n.path("cilium"), "cgroup-root": "/run/cilium/cgroupv2", "bpf-root": "/run/cilium/bpf", "devices": "eth0",
		"ipam": "kubernetes", "routing-mode": "native",
		"enable-host-legacy-routing": "true", // else answers pass by the pod's link, and no sample is answered (docs/kernel-hits.md)
		"kube-proxy-replacement":     "true", "bpf-lb-sock-hostns-only": hostOnly, "preallocate-bpf-maps": "false",
		"ipv4-range": n.PodRange(true).String(), "ipv4-native-routing-cidr": n.PodRange(true).String(), "enable-ipv4-masquerade": "false",
		"ipv6-range": n.PodRange(false).String(), "ipv6-native-routing-cidr": n.PodRange(false).String(), "enable-ipv6-masquerade": "false",
		"enable-ipv6": strconv.FormatBool(n.setup.families == testutil.Dual),
		// Without an API server there is no policy, and pods have no identities; all else is left out for the time that it takes.
		"enable-policy": "never", "enable-l7-proxy": "false", "enable-hubble": "false", "enable-health-checking": "false",
		"enable-endpoint-health-checking": "false",
	}
	for _, a := range n.HostAddrs() {
		flags[map[bool]string{true: "ipv4-node", false: "ipv6-node"}[a.Is4()]] = a.String()
	}
	const own = `mount -t tmpfs none /run && mount --bind /proc/sys/kernel /proc/sys/kernel &&
		mount -o remount,bind,ro /proc/sys/kernel && exec "$0" "$@"`
	args := []string{"unshare", "--mount", "--cgroup", "sh", "-c", own, filepath.Join(dir, "cilium-agent")}
	for name, value := range flags {
		args = append(args, "--"+name+"="+value)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+n.compiler()+":"+os.Getenv("PATH"))
	agent := n.Host.StartCmd(cmd)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("Cilium's log:\n%s", agent.Output())
		}
		agent.Kill() // its namespaces go with it, and what was attached from there
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	testutil.Within(n.t, ciliumStart, func() error {
		select {
		case <-agent.Exited():
			n.t.Fatal("Cilium's agent ended")
		default:
		}
		reply, err := client.Get("http://cilium/v1/config")
		if err != nil {
			return err
		}
		// Pods are made when its own programs are compiled and loaded: the plugin waits for a pod's a minute and a half.
		return errors.Join(reply.Body.Close(), n.wantProgram("cilium_host"))
	})
	n.t.Setenv("CILIUM_SOCK", socket) // for the plugin
	n.attaches, n.pluginDirs = object{"type": "cilium-cni", "log-file": n.path("cilium-cni.log")}, []string{dir}
	return n
}

// compiler is a folder with Debian's clang 19 by the name that Cilium calls it by.
func (n *node) compiler() string {
	n.t.Helper()
	clang, err := exec.LookPath("clang-19")
	if err == nil {
		if err = os.MkdirAll(n.path("clang"), 0o755); err == nil {
			err = os.Symlink(clang, n.path("clang/clang"))
		}
	}
	testutil.Must(n.t, err)
	return n.path("clang")
}

// enterCgroup makes a cgroup below the one that this process is in, and has the process in it until the test's end.
func (n *node) enterCgroup() {
	n.t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	testutil.Must(n.t, err)
	before := ""
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			before = filepath.Join(cgroup2(n.t), path)
		}
	}
	within := filepath.Join(before, fmt.Sprintf("neardns-cilium-%d-%d", os.Getpid(), time.Now().UnixNano()))
	enter := func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	testutil.Must(n.t, os.Mkdir(within, 0o755))
	n.t.Cleanup(func() {
		testutil.Check(n.t, enter(before))
		testutil.Eventually(n.t, func() error { return os.Remove(within) }) // what was started in it has ended, or is ending
	})
	testutil.Must(n.t, enter(within))
}

// services is the Service kube-dns and its endpoints, as Cilium reads them.
func (n *node) services() string {
	n.t.Helper()
	var names, endpoints []any
	ports := []any{object{"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
		object{"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"}}
	for _, p := range n.pairs() {
		names = append(names, p.service.String())
		family := map[bool]string{true: "IPv4", false: "IPv6"}[p.server.Is4()]
		endpoints = append(endpoints, object{
			"metadata": object{"name": "kube-dns-" + strings.ToLower(family), "namespace": "kube-system",
				"labels": object{"kubernetes.io/service-name": "kube-dns"}},
			"addressType": family, "ports": ports,
			"endpoints": []any{object{"addresses": []netip.Addr{p.server},
				"conditions": object{"ready": true, "serving": true, "terminating": false}}},
		})
	}
	text, err := json.Marshal(object{"endpoints": endpoints, "services": []any{object{
		"metadata": object{"name": "kube-dns", "namespace": "kube-system"},
		"spec":     object{"type": "ClusterIP", "clusterIP": names[0], "clusterIPs": names, "ports": ports},
	}}})
	testutil.Must(n.t, err)
	return string(text)
}
