package podfile

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/tick"
)

// LockPath returns the path of the file that Lock locks.
func LockPath(stateDir string) string { return filepath.Join(stateDir, nodestate.PluginLockName) }

// lockPoll is the pause between attempts to get a lock that another caller of Lock has. A plugin call takes a few milliseconds.
const lockPoll = 2 * time.Millisecond

// Lock waits until no other caller of Lock (a call of the plugin, or the agent when it adopts a pod) works on the container, and makes
// later callers wait until unlock is called. It returns an error if ctx ends first. A runtime should not make two plugin calls for one
// container at once. But if an ADD times out, the kubelet sends the DEL immediately, and the two would undo each other's work. The kernel
// releases the lock when the process ends. One empty file serves all containers: each locks one byte of it, chosen by a hash of its ID
// (open file description locks, Linux 3.15). unlock is never nil.
func Lock(ctx context.Context, stateDir, containerID string) (unlock func(), err error) {
	f, err := os.OpenFile(LockPath(stateDir), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return func() {}, fmt.Errorf("lock the plugin's calls: %w", err)
	}
	unlock = func() { _ = f.Close() }
	h := fnv.New64a()
	_, _ = h.Write([]byte(containerID)) // Write of a hash never returns an error
	for {
		one := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(h.Sum64() >> 1), Len: 1}
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &one)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return unlock, fmt.Errorf("lock the plugin's calls: %w", err)
		}
		if !tick.Pause(ctx, lockPoll) {
			return unlock, fmt.Errorf("another call works on container %s: %w", containerID, ctx.Err())
		}
	}
}
