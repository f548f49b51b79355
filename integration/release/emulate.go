package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// binfmt is the kernel's list of interpreters (Documentation/admin-guide/binfmt-misc.rst). Each entry is of the whole machine.
const binfmt = "/proc/sys/fs/binfmt_misc"

// emulator is what Debian's qemu-user-static has for an architecture that is not this machine's.
type emulator struct{ name, conf string }

var emulators = map[string]emulator{
	"arm64": {"qemu-aarch64", "/usr/lib/binfmt.d/qemu-aarch64.conf"},
	"amd64": {"qemu-x86_64", "/usr/lib/binfmt.d/qemu-x86_64.conf"},
}

// emulate has the kernel run programs of an architecture. quit takes back what emulate changed of the machine, and nothing else.
func emulate(arch string) (quit func() error, err error) {
	quit = func() error { return nil }
	if arch == runtime.GOARCH {
		return quit, nil
	}
	e := emulators[arch]
	rule, err := os.ReadFile(e.conf)
	if err != nil {
		return quit, fmt.Errorf("no emulator: install qemu-user-static: %w", err)
	}
	if _, err := os.Stat(binfmt + "/register"); errors.Is(err, fs.ErrNotExist) {
		if err := unix.Mount("binfmt_misc", binfmt, "binfmt_misc", 0, ""); err != nil {
			return quit, fmt.Errorf("mount %s: %w", binfmt, err)
		}
		quit = func() error { return unix.Unmount(binfmt, 0) }
	}
	entry := binfmt + "/" + e.name
	if _, err := os.Stat(entry); err == nil {
		return quit, nil // the machine's own
	}
	if err := os.WriteFile(binfmt+"/register", bytes.TrimSpace(rule), 0); err != nil {
		return quit, errors.Join(fmt.Errorf("register %s: %w", e.name, err), quit())
	}
	unmount := quit
	return func() error { return errors.Join(os.WriteFile(entry, []byte("-1"), 0), unmount()) }, nil
}
