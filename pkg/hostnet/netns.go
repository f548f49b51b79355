// Package hostnet reads the network of a host and its pods: it enters network namespaces, finds the interface by which a pod's packets
// enter the host and the links that lead away from it, opens netlink sockets and watches their events.
//
// It decides nothing and changes only links that the caller passes as its own (End). It knows no rule and no name of neardns: they are
// arguments.
//
// On failure: a fact that cannot be read is an error. If a pod's packets do not enter the host, the error is a *WayError with the reason.
package hostnet

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// HoldNetNS duplicates the descriptor of a netns; a negative one stands for the calling thread's netns. A socket is opened again after an
// error, possibly after the caller closed its descriptor and the kernel reused the number: rules would then go to another netns.
func HoldNetNS(nsFD int) (int, error) {
	var own int
	var err error
	if nsFD < 0 {
		own, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		own, err = unix.FcntlInt(uintptr(nsFD), unix.F_DUPFD_CLOEXEC, 3) // never 0, which means none to netlink.Config
	}
	if err != nil {
		return -1, fmt.Errorf("open netns: %w", err)
	}
	return own, nil
}

// IsHere reports whether a descriptor refers to the calling thread's own netns.
func IsHere(nsFD int) bool {
	var there, here unix.Stat_t
	if unix.Fstat(nsFD, &there) != nil || unix.Stat("/proc/thread-self/ns/net", &here) != nil {
		return false
	}
	return there.Ino == here.Ino && there.Dev == here.Dev
}

// ToEnter returns the descriptor for a library that enters a netns: 0 if the calling thread is in it already, because entering even one's
// own netns needs CAP_SYS_ADMIN.
func ToEnter(nsFD int) int {
	if IsHere(nsFD) {
		return 0
	}
	return nsFD
}

// InNetNS runs f on a separate thread in the netns behind fd. If that thread cannot return to its own netns, it ends. If the calling
// thread is in the netns already, it runs f itself, because entering even one's own netns needs CAP_SYS_ADMIN.
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
		// A thread that cannot go back stays locked, so the runtime ends it with this goroutine.
		if unix.Setns(home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
