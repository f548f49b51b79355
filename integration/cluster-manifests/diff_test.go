package clustermanifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// diff shows what is to be done to the lines of a to have those of b, with two lines around; empty if they are equal. In place of the
// numbers of lines, which every change of the base would move, it has dots.
func diff(t *testing.T, a, b string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"a": a, "b": b} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "diff", "-U2", "a", "b")
	cmd.Dir = dir
	text, err := cmd.Output()
	if state := cmd.ProcessState; state == nil || state.ExitCode() != 0 && state.ExitCode() != 1 {
		t.Fatalf("diff: %v", err)
	}
	var out strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		switch {
		case i < 2: // the files' names
		case line[0] == '@':
			out.WriteString("...\n")
		default:
			out.WriteString(strings.TrimRight(line[:1]+" "+line[1:], " ") + "\n")
		}
	}
	return out.String()
}
