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

// InChild runs the calling test once more, alone in a child process, because the test changes the whole process. by is an optional program
// with arguments that starts the child, for example setpriv. InChild returns true in the child. In the parent it returns false after the
// child has ended, and the test has failed if the child failed or skipped it.
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

// NoDescriptors makes each attempt of the process to open a further descriptor fail until lift is called. lift may be called more than
// once. Only a test InChild may call NoDescriptors.
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

// OpenFiles returns how many descriptors this process has open.
func OpenFiles(t TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	Must(t, err)
	return len(files)
}
