package main

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Without CAP_NET_ADMIN, `node` ends with what to do, before it changes anything.
func TestCapabilityIsMissing(t *testing.T) {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread without capabilities ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			failed <- err
			return
		}
		failed <- checkCapability()
	}()
	if err := <-failed; err == nil || !strings.HasPrefix(err.Error(), "operation not permitted: run it as root with CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}
