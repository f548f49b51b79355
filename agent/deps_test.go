package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestDeps checks what the agent links: it runs on every node and must not use the API server.
func TestDeps(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	testutil.Must(t, err)
	for prefix, why := range map[string]string{
		"k8s.io/":               "the agent asks no API server: what it needs of the cluster is in files",
		"sigs.k8s.io/":          "NodeConfig is read by internal/configfile, annotations by sigs.k8s.io/yaml (D-027)",
		"gopkg.in/yaml":         "NodeConfig is read by internal/configfile, annotations by sigs.k8s.io/yaml (D-027)",
		"testing":               "test code is not part of a product",
		module + "pkg/testutil": "test code is not part of a product",
		module + "plugins":      "plugin and agent share only pkg",
		module + "install":      "the installer is a program of its own",
		module + "fleet":        "fleet's programs are a product of their own",
		module + "integration":  "test code is not part of a product",
		"github.com/containernetworking/cni/libcni":    "that is the runtime's side",
		"github.com/coredns/coredns/plugin/kubernetes": "the agent asks kube-dns, not the API server",
	} {
		for dep := range strings.FieldsSeq(string(out)) {
			if dep != "sigs.k8s.io/yaml" && (dep == prefix || strings.HasPrefix(dep, strings.TrimSuffix(prefix, "/")+"/")) {
				t.Errorf("links %s: %s", dep, why)
			}
		}
	}
}

const module = "github.com/neardns/neardns/"
