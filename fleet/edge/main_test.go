package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestUsage(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"--version":              {cli.Good, "neardns-edge "},
		"version":                {cli.Good, "neardns-edge "},
		"--help":                 {cli.Good, "-config FILE"},
		"serve":                  {cli.Config, `unexpected argument "serve"`},
		"--port 53":              {cli.Config, "unknown flag: --port"},
		"--check --config /none": {cli.Config, "create the file or name another with --config"},
		"--config /none":         {cli.Config, "create the file or name another with --config"},
	} {
		var out bytes.Buffer
		e := env{stdout: &out, stderr: &out, lookupEnv: os.LookupEnv, readFile: os.ReadFile}
		if code := run(t.Context(), e, strings.Fields(line)); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%s: exit code %d, not %d, and\n%s\nwithout %q", line, code, want.code, out.String(), want.text)
		}
	}
}

// TestDeps: an edge faces the Internet. It uses no API server, and links nothing of the node's programs.
func TestDeps(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	testutil.Must(t, err)
	for dep := range strings.FieldsSeq(string(out)) {
		for _, prefix := range []string{"k8s.io/", "sigs.k8s.io/", "github.com/cilium/ebpf", "github.com/google/nftables",
			"github.com/neardns/neardns/agent", "github.com/neardns/neardns/plugins", "github.com/neardns/neardns/install"} {
			if strings.HasPrefix(dep, prefix) {
				t.Errorf("links %s", dep)
			}
		}
	}
}
