// Package hostnet owns facts about the network of a host and its pods: how to enter a netns, by which way a pod's packets come to the
// host, which links lead away from it, and sockets and events of netlink. Both back ends of the packet rules use it, and the programs,
// and so does whoever keeps a link (End).
//
// It decides nothing about a host, and changes nothing but the links that a caller says are its own. It knows no rule and no name of
// neardns's: what is ours is an argument.
//
// Failure policy: what cannot be found out is an error; a way that does not exist is a *WayError that names the reason.
package hostnet

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// HoldNetNS makes a descriptor of our own. Sockets are opened anew after errors, maybe by another thread and after the
// caller's descriptor was closed and its number given to another netns: those rules would land in the wrong place.
func HoldNetNS(nsFD int) (int, error) {
	var own int
	var err error
	if nsFD < 0 {
		own, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		own, err = unix.FcntlInt(uintptr(nsFD), unix.F_DUPFD_CLOEXEC, 3) // never 0, which netlink.Config takes for none
	}
	if err != nil {
		return -1, fmt.Errorf("open netns: %w", err)
	}
	return own, nil
}

// IsHere tells whether a descriptor is of the calling thread's own netns.
func IsHere(nsFD int) bool {
	var there, here unix.Stat_t
	return unix.Fstat(nsFD, &there) == nil && unix.Stat("/proc/thread-self/ns/net", &here) == nil && there.Ino == here.Ino && there.Dev == here.Dev
}

// ToEnter is what to tell a library of the netns behind a descriptor: nothing (0) where the calling thread is in it, since to
// enter even one's own takes CAP_SYS_ADMIN.
func ToEnter(nsFD int) int {
	if IsHere(nsFD) {
		return 0
	}
	return nsFD
}

// InNetNS runs f on a thread of its own in the netns behind fd, and so what f starts. The thread ends with it where it could
// not be brought back. A thread that is there already runs f itself: to enter even one's own takes CAP_SYS_ADMIN.
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
