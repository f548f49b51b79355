package main

import (
	"os"
	"path/filepath"
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
	n.install(1).has("not a regular file") // an installer that waited for the pipe would run until the test's timeout
	n.uninstall(1).has("no regular file")
}

// The plugin ignores an unknown key when a runtime calls it, so the installer reports such a key of a hand-written entry.
func TestEntryOfAPersonIsJudged(t *testing.T) {
	n := flannelNode(t)
	testutil.Must(t, os.Remove(n.plugin))
	testutil.Build(t, n.plugin, "../plugins/neardns")
	n.write(n.entry, strings.Replace(testEntry, `"redirects"`, `"colour":"red","redirects"`, 1), 0o644)
	out := n.install(2)
	out.has("colour: unknown key")
	if strings.Contains(out.text, "warning") {
		t.Errorf("a warning: %s", out.text)
	}
	n.wantUntouched()
}
