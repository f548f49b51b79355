package testutil

import (
	"os"
	"os/exec"
	"testing"
)

// Build builds the program of a package with the flags of `make build`, whose results the build cache has.
func Build(t testing.TB, out, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
}
