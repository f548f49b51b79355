package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// A pipe with the list's name, next to a single plugin's file, is refused instead of read, which would block.
func TestPipeInTheListsPlace(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conf", `{"cniVersion":"1.0.0","name":"n","type":"a"}`)
	testutil.Must(t, unix.Mkfifo(filepath.Join(n.conf, "10-a.conflist"), 0o600))
	code, out := n.install() // an installer that waited for the pipe would run until the test's timeout
	if code == 0 || !strings.Contains(out, "not a regular file") {
		t.Errorf("%d, %s; want a refusal that names the reason", code, out)
	}
	if code, out = n.uninstall(); code == 0 || !strings.Contains(out, "no regular file") {
		t.Errorf("uninstall: %d, %s; want a refusal that names the reason", code, out)
	}
}

// A file that is much larger than any network's list is refused before it is parsed.
func TestHugeListIsRefused(t *testing.T) {
	n := newNode(t)
	text := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","x":"` + strings.Repeat("a", maxList) + `"}]}`
	n.network("10-a.conflist", text)
	if code, out := n.install(); code == 0 || !strings.Contains(out, "is it a network's list?") {
		t.Errorf("%d, %s", code, out)
	}
	if n.read("10-a.conflist") != text {
		t.Error("the list was changed")
	}
}

// The plugin ignores an unknown key when a runtime calls it, so the installer reports such a key of a hand-written entry.
func TestEntryOfAPersonIsJudged(t *testing.T) {
	n := newNode(t)
	n.network("10-a.conflist", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`)
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", `rm "$0" && go build -buildvcs=false -o "$0" ../plugins/neardns`,
		n.plugin).CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	n.write(n.args[slices.Index(n.args, "--entry")+1], strings.Replace(testEntry, `"redirects"`, `"colour":"red","redirects"`, 1), 0o644)
	if code, out := n.install(); code != 2 || !strings.Contains(out, "colour: unknown key") || strings.Contains(out, "warning") {
		t.Errorf("%d, %s; want bad configuration that names the key", code, out)
	}
	if text := n.read("10-a.conflist"); strings.Contains(text, "neardns") {
		t.Errorf("the list was changed: %s", text)
	}
}
