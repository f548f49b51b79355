package process

import (
	"bytes"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestLimitMemory runs itself again inside a cgroup with a limit, and prints what is set there.
func TestLimitMemory(t *testing.T) {
	if os.Getenv("NEARDNS_IN_CGROUP") != "" {
		var logged bytes.Buffer
		LimitMemory(slog.New(slog.NewTextHandler(&logged, nil)), os.LookupEnv)
		t.Logf("limit %d GOGC %d, %s", debug.SetMemoryLimit(-1), debug.SetGCPercent(100), &logged)
		return
	}
	testutil.RequireRoot(t)
	group := testutil.NewCgroup(t, "memory")
	group.LimitMemory(300 << 20)
	t.Setenv("NEARDNS_IN_CGROUP", "1")
	for _, tc := range []struct{ memory, gogc, want string }{
		{"none", "none", "limit 251658240 GOGC 50, level=INFO msg=\"Go memory limit set\" gomemlimit=240.0MiB"},
		{"", "", "limit 251658240 GOGC 50, level=INFO msg=\"Go memory limit set\" gomemlimit=240.0MiB"},
		{"off", "", "limit 9223372036854775807 GOGC 50, level=INFO msg=\"no memory limit set for the Go runtime\""},
		{"64MiB", "30", "limit 67108864 GOGC 30, level=INFO msg=\"Go memory limit set\" gomemlimit=64.0MiB"},
	} {
		for name, value := range map[string]string{"GOMEMLIMIT": tc.memory, "GOGC": tc.gogc} {
			t.Setenv(name, value)
			if value == "none" {
				testutil.Must(t, os.Unsetenv(name))
			}
		}
		p := testutil.NewNS(t, "memory").StartIn([]*testutil.Cgroup{group}, os.Args[0], "-test.run", "^TestLimitMemory$", "-test.v")
		testutil.Check(t, p.Wait())
		out := p.Output()
		if i := strings.Index(out, "time="); i >= 0 { // the time of the log line
			_, rest, _ := strings.Cut(out[i:], " ")
			out = out[:i] + rest
		}
		if !strings.Contains(out, tc.want) {
			t.Errorf("%v\n%s", tc, out)
		}
	}
}
