package main

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// exchanger returns the Exchanger with which conflists are replaced. It detects if another program wrote the file in the meantime.
func exchanger() atomicfile.Exchanger { return atomicfile.Exchanger{Prefix: tempPrefix} }

// putBack renames temp to the .conf file that uninstall restores. If that file exists already (the network's installer restored it, or an
// earlier run was cut off), putBack only removes temp.
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
