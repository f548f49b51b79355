package main

import (
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDeps keeps the plugin small, because it runs at every pod's start, on every node.
func TestDeps(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	testutil.Must(t, err)
	for prefix, why := range map[string]string{
		"github.com/coredns/":                       "the cache is the agent's",
		"github.com/miekg/dns":                      "the plugin asks no DNS",
		"k8s.io/":                                   "the plugin asks no API server",
		"github.com/prometheus/":                    "a process of a few milliseconds has no metrics endpoint",
		"gopkg.in/yaml":                             "sigs.k8s.io/yaml reads annotations",
		"github.com/goccy/go-yaml":                  "sigs.k8s.io/yaml reads annotations",
		"go.opentelemetry.io/":                      "comes with libcni's invoke, which a plugin does not need",
		"github.com/containernetworking/cni/libcni": "that is the runtime's side",
		"github.com/neardns/neardns/agent":          "plugins never import the agent",
		"github.com/neardns/neardns/fleet":          "fleet's programs are a product of their own",
		"github.com/cilium/ebpf":                    "BPF is the agent's",
		"net/http":                                  "the plugin talks to nobody",
		"testing":                                   "test code is not part of a product",
	} {
		for dep := range strings.FieldsSeq(string(out)) {
			if dep == prefix || strings.HasPrefix(dep, strings.TrimSuffix(prefix, "/")+"/") || strings.HasSuffix(prefix, "/") && strings.HasPrefix(dep,
				prefix) {
				t.Errorf("links %s: %s", dep, why)
			}
		}
	}
}

func TestBinarySize(t *testing.T) {
	path := mustBinary(t)
	st, err := os.Stat(path)
	testutil.Must(t, err)
	const limit = 6 << 20
	if st.Size() > limit {
		t.Errorf("%d bytes, more than %d", st.Size(), limit)
	}
	f, err := elf.Open(path)
	testutil.Must(t, err)
	defer f.Close()
	if f.Section(".interp") != nil {
		t.Error("not static: it would need the host's libraries")
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Main.Path != "github.com/neardns/neardns" {
		t.Errorf("build information %v, %v", info, err)
	}
}
