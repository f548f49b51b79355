// Package memtrim frees memory that only the start of a process needed: freed heap, and pages of the program's file that package
// initialisation and reading the configuration touched.
//
// It never drops a page that was written or is locked. A dropped page that is used again comes back from the page cache.
//
// Failure policy: pages that cannot be dropped stay resident. The error is for the log.
package memtrim

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Settle frees the memory, and returns how many bytes of the program's file it dropped. It stops the world as a garbage collection does.
func Settle() (file int64, err error) {
	debug.FreeOSMemory()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("find the program's file: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("read what is mapped: %w", err)
	}
	var errs []error
	for _, a := range areas(string(smaps), exe) {
		// The range is this process's own, and file pages that were never written come back unchanged.
		if _, _, code := unix.Syscall(unix.SYS_MADVISE, a.start, a.end-a.start, unix.MADV_DONTNEED); code != 0 {
			errs = append(errs, fmt.Errorf("give back %#x-%#x: %w", a.start, a.end, code))
			continue
		}
		file += a.resident
	}
	return file, errors.Join(errs...)
}

// area is one mapping of the address space.
type area struct {
	start, end uintptr
	resident   int64 // bytes
}

// areas lists the read-only mappings of a file in /proc/PID/smaps (proc_pid_smaps(5)): its code and its constants. It leaves out a mapping
// with a private page, into which a debugger or a tracer (uprobes) has written, and a locked one.
func areas(smaps, file string) []area {
	var all []area
	var a area
	mine := false
	for line := range strings.Lines(smaps) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if name, ok := strings.CutSuffix(key, ":"); ok {
			if !mine {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 32)
			switch name {
			case "Rss":
				a.resident = n << 10
			case "Anonymous", "Swap", "Locked":
				mine = err == nil && n == 0
			case "VmFlags": // the last line of an area
				all, mine = append(all, a), false
			}
			continue
		}
		a, mine = header(key, value, file)
	}
	return all
}

// header parses the first line of a mapping, and reports whether it maps the file and is read-only.
func header(span, rest, file string) (area, bool) {
	first, last, _ := strings.Cut(span, "-")
	start, err := strconv.ParseUint(first, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(last, 16, strconv.IntSize)
	// Permissions, offset, device and inode come before the name, which may have spaces.
	perms, rest, _ := strings.Cut(rest, " ")
	for range 3 {
		_, rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
	}
	mine := err == nil && err2 == nil && start < end && (perms == "r--p" || perms == "r-xp") && strings.TrimLeft(rest, " ") == file
	return area{start: uintptr(start), end: uintptr(end)}, mine
}
