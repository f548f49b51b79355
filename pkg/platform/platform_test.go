package platform

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

// The guide has the table.
func TestTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| `platform` | CNI plugins | network configurations | kubelet's configuration | kube-dns's ConfigMap | tried |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, p := range All() {
		mount := "not mounted: the DNS address comes from `" + p.ServiceHost() + "`"
		if p.Mount != "" {
			mount = "`" + p.Mount + "`"
		}
		tried := "no"
		if p.Name == "kubeadm" {
			tried = "yes" // by make test-cluster
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | `%s` | %s | `%s/%s` | %s |\n", p.Name, p.CNIBin, p.CNIConf, mount, p.Namespace, p.Corefile, tried)
	}
	golden.Part(t, "../../docs/reference/platforms.md", "platforms", b.String())
}

// The mount is the kubelet's configuration, or the folder above it. A row without a configuration mounts nothing.
func TestMounts(t *testing.T) {
	for _, p := range All() {
		if p.Mount != "" && !strings.HasPrefix(p.Kubelet+"/", p.Mount) || p.Mount == "/var/lib/kubelet/" {
			t.Errorf("%s mounts %q, for %q", p.Name, p.Mount, p.Kubelet)
		}
	}
}

func TestKubeletFiles(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "c.d"), 0o755))
	for _, name := range []string{"c.d/20.conf", "c.d/10.conf", "c.d/README"} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	drops := []string{filepath.Join(dir, "c.d/10.conf"), filepath.Join(dir, "c.d/20.conf")}
	for kubelet, want := range map[string][]string{
		"": nil, filepath.Join(dir, "c.d"): drops, filepath.Join(dir, "c"): append([]string{filepath.Join(dir, "c")}, drops...),
	} {
		if got := (Platform{Kubelet: kubelet}).KubeletFiles(filepath.Glob); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", kubelet, got, want)
		}
	}
}

func TestHere(t *testing.T) {
	for found, want := range map[string]string{
		"": "kubeadm", "/etc/kubernetes/kubelet.yaml": "talos", "/var/lib/rancher/k3s/agent/etc/cni/net.d": "k3s", "/opt/cni/bin": "kubeadm",
		"KUBE_DNS_SERVICE_HOST": "kubeadm", "RKE2_COREDNS_RKE2_COREDNS_SERVICE_HOST": "rke2",
	} {
		by := found
		if want == "kubeadm" {
			by = ""
		}
		here := map[string]string{found: "10.96.0.10"}
		lookup := func(name string) (string, bool) { v, ok := here[name]; return v, ok }
		got, how := Here(func(path string) bool { return here[path] != "" }, lookup)
		if got.Name != want || how != by {
			t.Errorf("with %q: %s by %q, want %s by %q", found, got.Name, how, want, by)
		}
	}
}
