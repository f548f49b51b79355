// Package hostnet reads the network configuration of a host and its pods. It enters network namespaces, finds the interface by which a
// pod's packets enter the host and the interfaces that lead away from the host, opens netlink sockets and watches their events.
//
// It decides nothing, and changes only links that its caller owns (Handle, End). It contains no rules and no names of neardns;
// callers pass them as arguments.
//
// On failure a function returns an error (IsHere: false). If a pod's packets do not enter the host, the error is a *WayError with the
// reason.
package hostnet

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// HoldNetNS duplicates the descriptor of a netns, for a caller that opens sockets there later. If nsFD is negative, it opens the calling
// thread's netns. Without a copy, the owner of nsFD could close it and the kernel reuse the number for another netns, and then rules would
// go to the wrong netns.
func HoldNetNS(nsFD int) (int, error) {
	var own int
	var err error
	if nsFD < 0 {
		own, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		own, err = unix.FcntlInt(uintptr(nsFD), unix.F_DUPFD_CLOEXEC, 3) // at least 3, because netlink.Config takes 0 as no netns
	}
	if err != nil {
		return -1, fmt.Errorf("open netns: %w", err)
	}
	return own, nil
}

// IsHere reports whether nsFD is the calling thread's netns.
func IsHere(nsFD int) bool {
	var there, here unix.Stat_t
	if unix.Fstat(nsFD, &there) != nil || unix.Stat("/proc/thread-self/ns/net", &here) != nil {
		return false
	}
	return there.Ino == here.Ino && there.Dev == here.Dev
}

// ToEnter returns the descriptor to pass to a library that enters a netns. It is 0, for none, if the calling thread is already in that
// netns, because entering even one's own netns needs CAP_SYS_ADMIN.
func ToEnter(nsFD int) int {
	if IsHere(nsFD) {
		return 0
	}
	return nsFD
}

// InNetNS runs f in the netns behind fd, on a separate thread. If that thread cannot return to its own netns, it ends. If the calling
// thread is in the netns already, f runs on it, because entering even one's own netns needs CAP_SYS_ADMIN.
func InNetNS(fd int, f func() error) error {
	if IsHere(fd) {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own netns: %w", err)
			return
		}
		defer func() { _ = unix.Close(home) }()
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter netns: %w", err)
			return
		}
		err = f()
		// If the thread cannot return to its netns, leave it locked: the Go runtime then ends it together with this goroutine.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
