package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// The installer uses no API server, as nothing does on a node, and links nothing of fleet.
func TestDeps(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	testutil.Must(t, err)
	for dep := range strings.FieldsSeq(string(out)) {
		for _, prefix := range []string{"k8s.io/", "sigs.k8s.io/", "github.com/neardns/neardns/fleet/"} {
			if strings.HasPrefix(dep, prefix) && dep != "sigs.k8s.io/yaml" { // which reads annotations (D-027)
				t.Errorf("links %s", dep)
			}
		}
	}
}
