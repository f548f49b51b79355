package callers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestCnitoolPage runs docs/reference/cnitool.md as a reader does: the page's own shell, in namespaces of its own, and in it each block. A
// line "# prints: TEXT" is what the commands before it print.
func TestCnitoolPage(t *testing.T) {
	testutil.RequireRoot(t)
	made.Make(t)
	page := testutil.ReadFile(t, "../../docs/reference/cnitool.md")
	var blocks []string
	for _, part := range strings.Split(page, "```sh\n")[1:] {
		text, _, ok := strings.Cut(part, "```")
		if !ok {
			t.Fatal("a block is not closed")
		}
		blocks = append(blocks, text)
	}
	if len(blocks) < 8 || !strings.HasPrefix(blocks[0], "make build tools\n") || !strings.HasPrefix(blocks[1], "unshare ") {
		t.Fatalf("%d blocks; the first builds the programs, the second opens a shell: %q", len(blocks), blocks[:min(2, len(blocks))])
	}
	dir := t.TempDir()
	for folder, programs := range map[string][]string{"bin": {"neardns", "neardns-agent"}, "bin/tools": {"cnitool", "ptp", "host-local"}} {
		testutil.Must(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
		for _, name := range programs {
			testutil.Must(t, os.Symlink(made.Path(name), filepath.Join(dir, folder, name)))
		}
	}
	// Between two lines that print, the shell reports where it is.
	const mark = "--- printed by now: "
	var script strings.Builder
	var wants []string
	for _, block := range blocks[2:] {
		for line := range strings.Lines(block) {
			want, ok := strings.CutPrefix(line, "# prints: ")
			if !ok {
				script.WriteString(line)
				continue
			}
			fmt.Fprintf(&script, "echo; echo '%s%d'\n", mark, len(wants))
			wants = append(wants, strings.TrimSpace(want))
		}
	}
	if len(wants) < 15 {
		t.Errorf("%d lines say what is printed, there should be more", len(wants))
	}
	ctx := t.Context()
	shell := strings.Fields(strings.TrimSpace(blocks[1]))
	cmd := exec.CommandContext(ctx, shell[0], append(shell[1:], "-c", script.String())...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("the page does not end: %v\n%s", err, out)
	}
	rest := string(out)
	for i, want := range wants {
		printed, after, ok := strings.Cut(rest, fmt.Sprintf("%s%d\n", mark, i))
		if !ok || !strings.Contains(printed, want) {
			t.Errorf("it does not print %q, but\n%s", want, printed)
		}
		rest = after
	}
}
