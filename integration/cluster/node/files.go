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

// writeFiles writes all that the node's programs read. apiAt is the listener's address on the machine's loopback.
func (o Options) writeFiles(release containerd.Release, apiAt string) error {
	for _, dir := range []string{"pki", "bin", "log", "etcd", "kernel", "etc/cni/net.d", "opt/cni/bin", "var-log", "var-lib/kubelet", "var-lib/containerd"} {
		if err := os.MkdirAll(path(dir), 0o755); err != nil {
			return err
		}
	}
	token, err := pki()
	if err != nil {
		return err
	}
	// The machine's own: accounts, the dynamic linker's cache, which iptables it is.
	if out, err := exec.Command("cp", "-a", "/etc/.", path("etc")).CombinedOutput(); err != nil {
		return fmt.Errorf("copy /etc: %w\n%s", err, out)
	}
	for _, old := range []string{"etc/resolv.conf", "etc/cni/net.d"} { // the first may be a link, the second full of the machine's
		if err := os.RemoveAll(path(old)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path("etc/cni/net.d"), 0o755); err != nil {
		return err
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		if out, err := exec.Command("cp", filepath.Join(o.Bin, "tools", plugin), path("opt/cni/bin")).CombinedOutput(); err != nil {
			return fmt.Errorf("copy the network's plugins: %w\n%s", err, out)
		}
	}
	for name, value := range kernelSettings() {
		if err := os.WriteFile(path("kernel", filepath.Base(name)), []byte(value+"\n"), 0o644); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"kubeconfig": kubeconfig(apiAt, token), "kubeconfig.inside": kubeconfig(apiAddr, token),
		"token":                          token,
		"Corefile.outside":               outsideCorefile,
		"etc/resolv.conf":                "nameserver " + outsideAddr4 + "\nnameserver " + outsideAddr6 + "\n",
		"etc/cni/net.d/10-main.conflist": conflist,
		"var-lib/kubelet/config.yaml":    o.kubelet(),
		"containerd.toml": release.Config(containerd.Config{
			Root: "/var/lib/containerd", State: "/run/containerd", Socket: socket, Runc: "/run/runc",
			CNIBin: "/opt/cni/bin", CNIConf: "/etc/cni/net.d", Sandbox: PodImage, Registries: Registries, NRI: "/var/run/nri",
		}),
	} {
		mode := os.FileMode(0o644)
		if strings.Contains(text, token) {
			mode = 0o600
		}
		if err := os.WriteFile(path(name), []byte(text), mode); err != nil {
			return err
		}
	}
	return writeProxyConfig(o.Proxy)
}

// kubelet is the kubelet's configuration.
func (o Options) kubelet() string {
	text := strings.ReplaceAll(kubeletConfig, "CGROUP", cgroupName)
	if o.BackOff > 0 {
		text += fmt.Sprintf("crashLoopBackOff: {maxContainerRestartPeriod: %s}\n", o.BackOff)
	}
	return text
}

func writeProxyConfig(mode string) error {
	text := strings.NewReplacer("MODE", mode, "KUBECONFIG", path("kubeconfig.inside")).Replace(kubeProxyConfig)
	return os.WriteFile(path("kube-proxy.yaml"), []byte(text), 0o600)
}
