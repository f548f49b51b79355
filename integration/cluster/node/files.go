package node

import (
	_ "embed" // the node's files
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/integration/containerd"
)

//go:embed files/kubelet.yaml
var kubeletConfig string

//go:embed files/kube-proxy.yaml
var kubeProxyConfig string

//go:embed files/10-main.conflist
var conflist string

//go:embed files/Corefile.outside
var outsideCorefile string

//go:embed files/kube-dns.yaml
var kubeDNSManifest string

// kernelSettings are what the kubelet wants of the whole machine's kernel. The node shows it files that say so, so that it
// changes nothing.
func kernelSettings() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

// writeFiles writes all that the programs of every node read. apiAt is the listener's address on the machine's loopback. It returns the
// administrator's token.
func (o Options) writeFiles(release containerd.Release, apiAt string) (token string, err error) {
	for _, dir := range []string{"pki", "bin", "etcd", "kernel"} {
		if err := os.MkdirAll(path(dir), 0o755); err != nil {
			return "", err
		}
	}
	if token, err = pki(); err != nil {
		return "", err
	}
	for name, value := range kernelSettings() {
		if err := os.WriteFile(path("kernel", filepath.Base(name)), []byte(value+"\n"), 0o644); err != nil {
			return "", err
		}
	}
	for name, text := range map[string]string{
		"kubeconfig": kubeconfig(apiAt, token), "kubeconfig.inside": kubeconfig(apiAddr, token),
		"Corefile.outside": outsideCorefile,
		"containerd.toml": release.Config(containerd.Config{
			Root: "/var/lib/containerd", State: "/run/containerd", Socket: socket, Runc: "/run/runc",
			CNIBin: "/opt/cni/bin", CNIConf: "/etc/cni/net.d", Sandbox: PodImage, Registries: Registries, NRI: "/var/run/nri",
		}),
	} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return token, nil
}

// writeFiles writes what one node's programs read.
func (h host) writeFiles(o Options, token, kubernetes, runtimeDir string) error {
	for _, dir := range []string{"log", "etc", "opt/cni/bin", "var-log", "var-lib/kubelet", "var-lib/containerd"} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			return err
		}
	}
	// The machine's own: accounts, the dynamic linker's cache, which iptables it is.
	if out, err := exec.Command("cp", "-a", "/etc/.", h.path("etc")).CombinedOutput(); err != nil {
		return fmt.Errorf("copy /etc: %w\n%s", err, out)
	}
	for _, old := range []string{"etc/resolv.conf", "etc/cni/net.d"} { // the first may be a link, the second full of the machine's
		if err := os.RemoveAll(h.path(old)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(h.path("etc/cni/net.d"), 0o755); err != nil {
		return err
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if out, err := exec.Command("cp", filepath.Join(o.Bin, "tools", plugin), h.path("opt/cni/bin")).CombinedOutput(); err != nil {
			return fmt.Errorf("copy the network's plugins: %w\n%s", err, out)
		}
	}
	outside := h.outside()
	for name, text := range map[string]string{
		"etc/resolv.conf":                "nameserver " + outside[0] + "\nnameserver " + outside[1] + "\n",
		"etc/cni/net.d/10-main.conflist": h.conflist(),
		"var-lib/kubelet/config.yaml":    h.kubelet(o),
	} {
		if err := os.WriteFile(h.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := writeJSON(h.path("plan.json"), plan{Bin: o.Bin, Token: token, Programs: h.programs(kubernetes, runtimeDir)}); err != nil {
		return err
	}
	return h.writeProxyConfig(o.Proxy)
}

// conflist is the list of the pods' network.
func (h host) conflist() string {
	pods := h.pods()
	return strings.NewReplacer("PODS4", pods[0], "PODS6", pods[1]).Replace(conflist)
}

// kubelet is the kubelet's configuration.
func (h host) kubelet(o Options) string {
	text := strings.ReplaceAll(kubeletConfig, "CGROUP", h.cgroup())
	if o.BackOff > 0 {
		text += fmt.Sprintf("crashLoopBackOff: {maxContainerRestartPeriod: %s}\n", o.BackOff)
	}
	return text
}

func (h host) writeProxyConfig(mode string) error {
	text := strings.NewReplacer("MODE", mode, "NAME", h.name(), "KUBECONFIG", path("kubeconfig.inside")).Replace(kubeProxyConfig)
	return os.WriteFile(h.path("kube-proxy.yaml"), []byte(text), 0o600)
}
