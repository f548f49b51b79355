package process

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestLimitMemory(t *testing.T) {
	for _, tc := range []struct {
		name  string
		env   string
		limit uint64
		err   error
		want  int64 // -1: nothing is set
		said  string
	}{
		{"limited", "", 100 << 20, nil, 100 << 20 / 100 * 80, "gomemlimit=80.0MiB container=100.0MiB source=cgroup"},
		{"environment goes before", "64MiB", 100 << 20, nil, -1, "gomemlimit=7.0MiB source=GOMEMLIMIT"},
		{"empty variable", "", 50 << 20, nil, 50 << 20 / 100 * 80, "source=cgroup"},
		{"unlimited", "", 0, memlimit.ErrNoLimit, -1, "no memory limit set"},
		{"no cgroup", "", 0, memlimit.ErrNoCgroup, -1, "no memory limit set"},
		{"unreadable", "", 0, errors.New("read memory.max: permission denied"), -1, "set GOMEMLIMIT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said bytes.Buffer
			got, percent := int64(-1), -1
			limitMemory(slog.New(slog.NewTextHandler(&said, nil)),
				func(name string) (string, bool) { return tc.env, name == "GOMEMLIMIT" },
				func() (uint64, error) { return tc.limit, tc.err },
				func(n int64) int64 {
					if n >= 0 {
						got = n
					}
					return 7 << 20
				},
				func(n int) int { percent = n; return 100 })
			if percent != gcPercent {
				t.Errorf("GOGC set to %d", percent)
			}
			if got != tc.want {
				t.Errorf("set to %d, want %d", got, tc.want)
			}
			if text := said.String(); !strings.Contains(text, tc.said) || strings.Count(text, "\n") != 1 {
				t.Errorf("said %q, want one line with %q", text, tc.said)
			}
		})
	}
}

func TestGOGCInTheEnvironmentHolds(t *testing.T) {
	limitMemory(slog.New(slog.DiscardHandler), func(name string) (string, bool) { return "100", name == "GOGC" },
		func() (uint64, error) { return 0, memlimit.ErrNoLimit }, func(int64) int64 { return 0 },
		func(n int) int { t.Errorf("set to %d", n); return 0 })
}

// TestCgroupIsRead runs itself again inside a cgroup with a limit. It checks that the library reads the limit with this machine's cgroup
// version.
func TestCgroupIsRead(t *testing.T) {
	if os.Getenv("NEARDNS_IN_CGROUP") != "" {
		limit, err := memlimit.FromCgroup()
		t.Logf("limit %d err %v", limit, err)
		return
	}
	testutil.RequireRoot(t)
	group := testutil.NewCgroup(t, "memory")
	group.LimitMemory(300 << 20)
	t.Setenv("NEARDNS_IN_CGROUP", "1")
	p := testutil.NewNS(t, "memory").StartIn([]*testutil.Cgroup{group}, os.Args[0], "-test.run", "^TestCgroupIsRead$", "-test.v")
	if err := p.Wait(); err != nil || !strings.Contains(p.Output(), "limit 314572800 err <nil>") {
		t.Errorf("%v\n%s", err, p.Output())
	}
}
