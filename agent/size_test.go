package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

const (
	mostFileLines = 200 // of a file in any package main
	mostMainLines = 800 // of those of the agent altogether
)

// TestCommandsAreShort checks that package main has only commands (flags, a call, output). Longer code belongs in a package.
func TestCommandsAreShort(t *testing.T) {
	isMain := regexp.MustCompile(`(?m)^package main$`)
	total := 0
	for _, folder := range []string{"agent", "fleet", "install", "plugins", "integration", "pkg"} {
		err := filepath.WalkDir(filepath.Join("..", folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !isMain.Match(text) {
				return err
			}
			lines, name := bytes.Count(text, []byte("\n")), strings.TrimPrefix(filepath.ToSlash(path), "../")
			if lines > mostFileLines {
				t.Errorf("%s has %d lines, at most %d", name, lines, mostFileLines)
			}
			if strings.HasPrefix(name, "agent/") {
				total += lines
			}
			return nil
		})
		testutil.Must(t, err)
	}
	if total > mostMainLines || total == 0 {
		t.Errorf("package main of the agent has %d lines, at most %d", total, mostMainLines)
	}
}
