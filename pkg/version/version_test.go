package version_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/version"
)

// String never returns an empty text, not even in a test program.
func TestString(t *testing.T) {
	if version.String() == "" {
		t.Error("a program has no name for its version")
	}
}

// A program of a commit with a tag calls itself by the tag.
func TestTag(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("version.go")
	testutil.Must(t, err)
	for name, content := range map[string]string{
		"go.mod":             "module example.org/tagged\n\ngo 1.26\n",
		"version/version.go": string(text),
		"main.go":            "package main\n\nimport \"example.org/tagged/version\"\n\nfunc main() { println(version.String()) }\n",
	} {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testutil.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for _, args := range [][]string{
		{"git", "init", "-q"}, {"git", "add", "."},
		{"git", "-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-q", "-m", "all"}, {"git", "tag", "v0.1.0"},
		{"go", "build", "-buildvcs=true", "-o", filepath.Join(t.TempDir(), "tagged"), "."},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		if args[0] == "go" {
			out, err := exec.CommandContext(t.Context(), args[4]).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != "v0.1.0" {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
}
