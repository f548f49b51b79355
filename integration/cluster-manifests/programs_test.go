package clustermanifests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

// programs is where the products' binaries are, built once for the run.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "neardns-manifests")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var build = sync.OnceValue(func() error {
	for name, pkg := range map[string]string{"neardns-agent": "./agent", "neardns-install": "./install", "neardns-edge": "./fleet/edge"} {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(programs, name), pkg)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0") // as make build
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
})

// run runs a product to its end, with what Kubernetes gives a pod in its environment.
func run(t *testing.T, program string, env []string, args ...string) (output string, code int) {
	t.Helper()
	must(t, build())
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, program), args...)
	cmd.Env = append([]string{"NODE_IP=192.0.2.7", "KUBE_DNS_SERVICE_HOST=10.96.0.10"}, env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// shown is what the tests read of `neardns-agent config show`.
type shown struct {
	Redirects []struct {
		ClusterDNS string `json:"clusterDNS"`
		Steering   string `json:"steering"`
	} `json:"redirects"`
	LocalAddresses []string `json:"localAddresses"`
	KubeProxyMode  string   `json:"kubeProxyMode"`
	InterceptNode  bool     `json:"interceptNode"`
	Upstreams      struct {
		Cluster []string `json:"cluster"`
	} `json:"upstreams"`
	Listen struct {
		Health  string `json:"health"`
		Metrics string `json:"metrics"`
	} `json:"listen"`
	Link struct {
		ClusterDNSOnLink bool `json:"clusterDNSOnLink"`
	} `json:"link"`
	StateDir string `json:"stateDir"`
}

// show has the agent read a NodeConfig, which must be right, and returns what it makes of it.
func show(t *testing.T, text string) (s shown) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nodeconfig.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	out, code := run(t, "neardns-agent", []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.99", "NODE_LOCAL_UPSTREAM_SERVICE_HOST=10.96.0.99"}, "config", "show", "--config", file)
	if code != 0 {
		t.Fatalf("the agent refuses it: %s", out)
	}
	if err := yaml.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("config show prints no YAML: %v\n%s", err, out)
	}
	return s
}
