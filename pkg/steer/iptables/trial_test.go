package iptables

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestTrialWithoutResult: a program that is killed (by the OOM killer, for example) or cannot be started shows nothing about the kernel.
// The next trial decides, and its result stays.
func TestTrialWithoutResult(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	b, err := Open(-1, NFT, nil)
	testutil.Must(t, err)
	defer b.Close()
	for _, c := range []struct {
		name, program string
		has, fails    bool
	}{
		{"killed", "#!/bin/sh\nkill -KILL $$\n", false, true},
		{"cannot be started", "", false, true},
		{"accepted", "#!/bin/sh\n", true, false},
		{"later", "#!/bin/sh\nexit 1\n", true, false},
	} {
		for _, name := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
			testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(c.program), 0o755))
		}
		if has, err := b.hasRoutes(); has != c.has || (err != nil) != c.fails {
			t.Errorf("%s: the kernel has the match: %t, %v", c.name, has, err)
		}
		if err := b.Supported(); errors.Is(err, steer.ErrNotSupported) == (c.fails || c.name == "accepted") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
