package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	mostFileLines = 200 // of a file in any product's package main
	mostMainLines = 800 // of this one altogether
)

// Files that are still longer, with as many lines as they may have. A line goes when its file is short.
var longFiles = map[string]int{"plugins/neardns/add.go": 266}

// TestCommandsAreShort holds package main to commands: flags, a call, what is printed. What is longer has a life of its own, and a
// package.
func TestCommandsAreShort(t *testing.T) {
	isMain := regexp.MustCompile(`(?m)^package main$`)
	total := 0
	for _, program := range []string{"agent", "install", "plugins"} {
		err := filepath.WalkDir(filepath.Join("..", program), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !isMain.Match(text) {
				return err
			}
			lines, name := bytes.Count(text, []byte("\n")), strings.TrimPrefix(filepath.ToSlash(path), "../")
			if most := max(mostFileLines, longFiles[name]); lines > most {
				t.Errorf("%s has %d lines, at most %d", name, lines, most)
			}
			if longFiles[name] > 0 && lines <= mostFileLines {
				t.Errorf("%s is short now: take it out of longFiles", name)
			}
			if filepath.Dir(name) == "agent" {
				total += lines
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if total > mostMainLines || total == 0 {
		t.Errorf("package main of the agent has %d lines, at most %d", total, mostMainLines)
	}
}
