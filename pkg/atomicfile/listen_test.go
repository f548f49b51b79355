package atomicfile

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestListen checks that a second listener replaces the first one's socket, and that closing the first leaves it in place.
func TestListen(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		t.Run(network, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			answers := func(want *net.UnixListener) {
				t.Helper()
				c, err := net.Dial(network, path)
				testutil.Must(t, err)
				defer c.Close()
				got, err := want.AcceptUnix()
				testutil.Must(t, err)
				_ = got.Close()
			}
			testutil.Must(t, os.WriteFile(path+".new", []byte("left by a crash"), 0o600))
			first, err := Listen(network, path)
			testutil.Must(t, err)
			answers(first)
			second, err := Listen(network, path)
			testutil.Must(t, err)
			defer second.Close()
			answers(second)
			testutil.Must(t, first.Close())
			answers(second)
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
			if _, err := os.Stat(path + ".new"); err == nil {
				t.Error("a file is left beside it")
			}
		})
	}
}

func TestListenNot(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "folder")
	testutil.Must(t, os.MkdirAll(filepath.Join(full+".new", "in it"), 0o700))
	for name, path := range map[string]string{
		"no folder":                filepath.Join(dir, "none", "s"),
		"too long":                 filepath.Join(dir, strings.Repeat("s", 120)),
		"a folder is in its place": full,
	} {
		if l, err := Listen("unix", path); err == nil {
			_ = l.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
