package peers

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

var place = Place{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.96.0.11"), "/a/folder"}

// What Write writes has the caller's part at its end, and is what the command names.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "unbound"), nil, 0o700))
	at := place
	at.Dir = dir
	args, err := Unbound().Write(at, "more\n")
	if err != nil || args[len(args)-1] != filepath.Join(dir, "unbound.conf") {
		t.Fatalf("%v, %q", err, args)
	}
	text, err := os.ReadFile(args[len(args)-1])
	if want, _ := Unbound().Config(at); err != nil || string(text) != want+"more\n" {
		t.Errorf("%v:\n%s", err, text)
	}
	at.Dir = filepath.Join(dir, "none")
	_, err = Unbound().Write(at, "")
	testutil.WantError(t, err, "unbound", "into no folder")
}

// Each configuration names its addresses, leaves no mark unfilled, and has a reason for every third line at least.
func TestConfig(t *testing.T) {
	for _, p := range All() {
		text, err := p.Config(place)
		testutil.Must(t, err)
		for _, want := range []string{"169.254.20.10", "10.96.0.10", "10.96.0.11"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s", p.Name, want)
			}
		}
		if strings.Contains(text, "@") {
			t.Errorf("%s: unfilled:\n%s", p.Name, text)
		}
		reasons := 0
		for line := range strings.Lines(text) {
			if strings.Contains(line, "# ") || strings.HasPrefix(line, "-- ") {
				reasons++
			}
		}
		if lines := strings.Count(text, "\n"); reasons*3 < lines {
			t.Errorf("%s: %d reasons in %d lines", p.Name, reasons, lines)
		}
	}
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	for _, p := range All() {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, p.Program), nil, 0o700))
	}
	t.Setenv("PATH", dir)
	for _, p := range All() {
		args, err := p.Command(place, "/a/file")
		if err != nil || args[0] != filepath.Join(dir, p.Program) || !strings.Contains(strings.Join(args, " "), "/a/f") {
			t.Errorf("%s: %v, %q", p.Name, err, args)
		}
	}
	_, err := Find("no-such-server")
	testutil.WantError(t, err, "no-such-server")
}
