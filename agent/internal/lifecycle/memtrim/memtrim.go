// Package memtrim frees memory that only the start of a process needed: unused heap memory, and the resident read-only pages of the
// program's executable.
//
// It never drops a page that was written or is locked. If a dropped page is used again, the kernel maps it again from the executable.
//
// Failure policy: pages that cannot be dropped stay resident, and Settle returns an error to be logged.
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

// Settle frees the memory, and returns how many bytes of the executable's pages it dropped. It stops all goroutines for a moment, as a
// garbage collection does.
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
		// This is safe: the range is mapped by this process, and pages of a file that were never written are read again unchanged.
		if _, _, code := unix.Syscall(unix.SYS_MADVISE, a.start, a.end-a.start, unix.MADV_DONTNEED); code != 0 {
			errs = append(errs, fmt.Errorf("drop the pages at %#x-%#x: %w", a.start, a.end, code))
			continue
		}
		file += a.resident
	}
	return file, errors.Join(errs...)
}

// area is one mapping in the process's address space.
type area struct {
	start, end uintptr
	resident   int64 // bytes
}

// areas lists the read-only mappings of a file (its code and constants), from the text of /proc/PID/smaps (proc_pid_smaps(5)). It leaves
// out locked mappings, and mappings with a private page, because a debugger or a tracer (uprobes) may have written there.
func areas(smaps, file string) []area {
	var all []area
	var a area
	mine := false
	for line := range strings.Lines(smaps) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, " ")
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
			case "VmFlags": // VmFlags is the last line of a mapping
				all, mine = append(all, a), false
			}
			continue
		}
		a, mine = header(line, file)
	}
	return all
}

// header parses the first line of a mapping in smaps, which ends with the file's name, and reports whether the mapping is read-only and of
// this file.
func header(line, file string) (a area, mine bool) {
	var perms string
	n, _ := fmt.Sscanf(line, "%x-%x %s", &a.start, &a.end, &perms)
	return a, n == 3 && a.start < a.end && (perms == "r--p" || perms == "r-xp") && strings.HasSuffix(line, " "+file)
}
