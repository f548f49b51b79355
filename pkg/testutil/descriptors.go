package testutil

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// InChild runs the test that calls it once more, alone in a process of its own, for what changes the whole process: one that the program
// by makes, such as setpriv, with its arguments, if there is one. It reports whether this is that process; where it is not, the test is
// done, and has failed with a child that failed or skipped.
func InChild(t testing.TB, by ...string) bool {
	t.Helper()
	const child = "NEARDNS_TEST_IN_CHILD"
	if os.Getenv(child) == t.Name() {
		return true
	}
	line := slices.Concat(by, []string{os.Args[0], "-test.run=^" + t.Name() + "$", "-test.count=1", "-test.v"})
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...) //nolint:gosec // this very binary
	cmd.Env = append(os.Environ(), child+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a process of its own: %v\n%s", err, out)
	}
	return false
}

// NoDescriptors has the process get no further descriptor until lift is called, once or more often. Only a test InChild may call it.
func NoDescriptors(t TB) (lift func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatalf("read the limit of descriptors: %v", err)
	}
	next, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0) // the lowest free descriptor
	if err != nil {
		t.Fatalf("look for a free descriptor: %v", err)
	}
	if err := errors.Join(unix.Close(next), unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max})); err != nil { //nolint:gosec // not negative
		t.Fatalf("limit the descriptors to %d: %v", next, err)
	}
	lift = sync.OnceFunc(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatalf("lift the limit of descriptors: %v", err)
		}
	})
	t.Cleanup(lift)
	return lift
}
