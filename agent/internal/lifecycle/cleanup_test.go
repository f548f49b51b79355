package lifecycle

import (
	"fmt"
	"testing"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

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
		testutil.Equal(t, fmt.Sprintf("%s below %q", c.state, c.hostRoot), c.want, bpfFolder(c.state, c.hostRoot))
	}
}
