package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// exchanger replaces networks' lists safely although their owners write them too.
func exchanger() atomicfile.Exchanger { return atomicfile.Exchanger{Prefix: tempPrefix} }

// putBack gives a finished file its name, unless a file of that name exists: the owner has restored its own, or an earlier run was cut
// off.
func putBack(temp, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return os.Remove(temp)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP): // a filesystem that cannot, such as NFS
		if _, err := os.Lstat(to); err == nil {
			return os.Remove(temp)
		}
		return rename(temp, to)
	case err != nil:
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(to))
}
