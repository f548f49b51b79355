package instancelock

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// squat binds a name as a process without CAP_NET_ADMIN can, with the largest buffers that it can get.
func squat(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testutil.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		testutil.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, math.MaxInt32/2))
	}
	testutil.Must(t, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "\x00" + name}), unix.Listen(fd, 1)))
}

// inNS runs f in a netns of the test's own.
func inNS(t *testing.T, f func()) {
	t.Helper()
	testutil.RequireRoot(t)
	testutil.NewNS(t, "lock").Do(f)
}

// One process has a lock until it closes it. Locks with other names, and in other netns, are independent.
func TestLockHasOneHolder(t *testing.T) {
	inNS(t, func() {
		first, err := Take("test")
		testutil.Must(t, err)
		if _, err := Take("test"); !errors.Is(err, ErrHeld) {
			t.Errorf("taken twice: %v", err)
		}
		other, err := Take("test-too")
		testutil.Check(t, err, "another lock")
		_ = other.Close()
		_ = first.Close()
		again, err := Take("test")
		if err != nil {
			t.Fatalf("a released lock: %v", err)
		}
		_ = again.Close()
	})
}

// A process without CAP_NET_ADMIN can neither take a lock nor keep an agent from it, whatever names it binds.
func TestUnprivilegedProcessCannotBlock(t *testing.T) {
	inNS(t, func() {
		squat(t, "test")
		for i := range 300 {
			squat(t, fmt.Sprintf("test.%d", i))
		}
		f, err := Take("test")
		if err != nil {
			t.Fatalf("next to squatters: %v", err)
		}
		defer f.Close()
		if _, err := Take("test"); !errors.Is(err, ErrHeld) {
			t.Errorf("taken twice next to squatters: %v", err)
		}
	})
	inNS(t, func() {
		done := make(chan error)
		home := netns(t)
		defer home.Close()
		go func() { // on a thread without the capability, which ends with the goroutine
			runtime.LockOSThread()
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			err := errors.Join(unix.Setns(int(home.Fd()), unix.CLONE_NEWNET), unix.Capget(&header, &caps[0]))
			caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
			if err = errors.Join(err, unix.Capset(&header, &caps[0])); err == nil {
				_, err = Take("test")
			}
			done <- err
		}()
		if err := <-done; !errors.Is(err, unix.EPERM) {
			t.Errorf("taken without CAP_NET_ADMIN: %v", err)
		}
	})
}

func netns(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/thread-self/ns/net")
	testutil.Must(t, err)
	return f
}

// Of many that try at the same time never two have the lock.
func TestLockUnderContention(t *testing.T) {
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "lock")
	var inside, turns atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				ns.Do(func() {
					f, err := Take("test")
					if errors.Is(err, ErrHeld) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					if n := inside.Add(1); n > 1 {
						t.Errorf("%d have the lock", n)
					}
					turns.Add(1)
					inside.Add(-1)
					_ = f.Close()
				})
			}
		})
	}
	group.Wait()
	if turns.Load() == 0 {
		t.Error("no one ever had it")
	}
}
