package lifecycle

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestPipeInsteadOfNetwork: a pipe with a network's name is an error, and does not block the cleanup.
func TestPipeInsteadOfNetwork(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, unix.Mkfifo(filepath.Join(dir, "10-a.conflist"), 0o600))
	if _, err := namesPlugin(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe instead of a network: %v", err)
	}
}

// TestBPFFolder: a cleanup that sees the host's root in a folder finds what the node's agent left, whose state folder has another name
// there.
func TestBPFFolder(t *testing.T) {
	own := nodestate.BPFFolder("/var/state")
	for _, c := range []struct{ state, hostRoot, want string }{
		{"/run/neardns", "/", "/sys/fs/bpf/neardns"},
		{"/run/neardns", "", "/sys/fs/bpf/neardns"},
		{"/host/run/neardns", "/host", "/host/sys/fs/bpf/neardns"},
		{"/host/run/neardns", "", "/host/sys/fs/bpf/neardns"}, // the hosts file is to stay as it is (fleet/install/placement/left)
		{"/host/var/state", "/host", "/host" + own},
		{"/run/neardns", "/host", "/sys/fs/bpf/neardns"}, // mounted where the host has it
		{"/var/state", "/", own},
	} {
		if got := bpfFolder(c.state, c.hostRoot); got != c.want {
			t.Errorf("%s below %q: %s, want %s", c.state, c.hostRoot, got, c.want)
		}
	}
}
