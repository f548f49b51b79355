package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func TestCheckNamesWhatIsWrong(t *testing.T) {
	empty := t.TempDir()
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"mode of kube-proxy": {Options{Bin: empty, Proxy: "ipvs", Runtime: "containerd16"}, `"ipvs"`},
		"runtime":            {Options{Bin: empty, Proxy: "iptables", Runtime: "cri-o"}, `"cri-o"`},
		"nodes":              {Options{Bin: empty, Proxy: "iptables", Runtime: "containerd16", Workers: 5}, "6 nodes"},
		"Kubernetes":         {Options{Bin: empty, Proxy: "iptables", Runtime: "containerd16"}, "make cluster"},
	} {
		if err := c.o.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v does not say %s", name, err, c.want)
		}
	}
	// A program that is missing is named.
	if err := os.MkdirAll(filepath.Join(empty, "tools/k8s-v1.2.3"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (Options{Bin: empty, Proxy: "nftables", Runtime: "containerd2"}).Check(); err == nil || !strings.Contains(err.Error(), filepath.Join(empty, "neardns")) {
		t.Errorf("%v does not name the first program", err)
	}
}

// The kubelet gets a bound of its pause only where a test sets one.
func TestBackOff(t *testing.T) {
	for want, o := range map[string]Options{"1s": {BackOff: time.Second}, "": {}} {
		var v struct {
			CrashLoopBackOff struct {
				MaxContainerRestartPeriod string `json:"maxContainerRestartPeriod"`
			} `json:"crashLoopBackOff"`
		}
		if err := yaml.Unmarshal([]byte(host(0).kubelet(o)), &v); err != nil || v.CrashLoopBackOff.MaxContainerRestartPeriod != want {
			t.Errorf("%v: %+v, want %q:\n%s", err, v, want, host(0).kubelet(o))
		}
	}
}

// What the programs read is well formed, and the kubelet's configuration and kube-dns's manifest have each cluster DNS address.
func TestFilesParse(t *testing.T) {
	for name, text := range map[string]string{
		"kubeconfig": kubeconfig(apiAddr, "secret"), "kubelet": kubeletConfig, "kube-proxy": kubeProxyConfig, "conflist": conflist,
	} {
		var v map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil || len(v) < 3 {
			t.Errorf("%s: %v, %v", name, err, v)
		}
	}
	for doc := range strings.SplitSeq(kubeDNSManifest, "\n---\n") {
		var v struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &v); err != nil || v.Kind == "" {
			t.Errorf("kube-dns: %v in\n%s", err, doc)
		}
	}
	for _, a := range KubeDNS() {
		if !strings.Contains(kubeletConfig, a.String()) || !strings.Contains(kubeDNSManifest, a.String()) {
			t.Errorf("the cluster DNS address %s is not everywhere", a)
		}
	}
}

// Nothing is started before what it needs, and nothing runs from a folder that the node covers.
func TestPrograms(t *testing.T) {
	var names []string
	for _, p := range host(0).programs("tools/k8s-v1.2.3", "") {
		names = append(names, p.Name)
		if p.Name != "containerd" && !strings.HasPrefix(p.Args[0], path("bin")+"/") {
			t.Errorf("%s runs %s", p.Name, p.Args[0])
		}
	}
	for _, order := range [][2]string{{"etcd", "kube-apiserver"}, {"containerd", "kubelet"}, {"kube-apiserver", "kubelet"}} {
		if a, b := slices.Index(names, order[0]), slices.Index(names, order[1]); a < 0 || b < a {
			t.Errorf("%q: %s is not before %s", names, order[0], order[1])
		}
	}
	for at := range ownFolders() {
		if strings.HasPrefix(Dir, at+"/") {
			t.Errorf("%s is below %s, which the node covers", Dir, at)
		}
	}
}

func TestStartTime(t *testing.T) {
	if own := startTime(os.Getpid()); own == "" || own != startTime(os.Getpid()) {
		t.Errorf("this process has the start %q", own)
	}
	if got := startTime(1 << 30); got != "" {
		t.Errorf("a process that does not exist started at %s", got)
	}
}
