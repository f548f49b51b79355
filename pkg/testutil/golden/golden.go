// Package golden compares a test's output with the expected text in a file: a file next to the test, a part of a document, or the last
// section of a case file. It writes such a file only if the test binary runs with -update, and never deletes one.
//
// It is a separate package so that only test binaries that use it have the flag.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Check compares got with the file testdata/<name>. With -update it writes the file.
func Check(t testing.TB, name, got string) {
	t.Helper()
	File(t, filepath.Join("testdata", filepath.FromSlash(name)), got)
}

// File compares got with a file. With -update it writes the file.
func File(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("make folder for golden file: %v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatalf("write golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read golden file (run with -update to write it): %v", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got; run with -update if the new text is right):\n%s", path, diff)
	}
}

// Part compares got with the text in a document between the comments <!-- name --> and <!-- end of name -->. With -update it replaces that
// text by got.
func Part(t testing.TB, path, name, got string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for what is drawn: put the lines %q and %q into it", path, strings.TrimSpace(begin), end)
	}
	File(t, path, head+begin+got+end+tail)
}

// Cases runs f for each file that the pattern matches, as a subtest with the file's name without its ending. A file has sections, each
// below a line "-- name --". Cases compares the last section, want, with the result of f. With -update it writes that section.
func Cases(t *testing.T, pattern string, f func(t *testing.T, sections map[string]string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			const mark = "-- want --\n"
			given, _, _ := strings.Cut(string(text), mark)
			File(t, file, given+mark+f(t, Sections(given)))
		})
	}
}

// Sections returns the sections of a case file: name → text.
func Sections(text string) map[string]string {
	out := map[string]string{}
	name := ""
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(line, "-- "); ok {
			if s, ok := strings.CutSuffix(s, " --\n"); ok {
				name = s
				out[name] = ""
				continue
			}
		}
		out[name] += line
	}
	return out
}
