package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// exchanger returns the Exchanger with which conflists are replaced. It detects if another program wrote the file in the meantime.
func exchanger() atomicfile.Exchanger { return atomicfile.Exchanger{Prefix: tempPrefix} }

// write makes the change that plan returns, and plans again if another program has changed the file meanwhile. In a dry run it prints the
// content that it would write. It returns the change, and whether there was anything to write.
func (f folders) write(plan func() (change, error)) (change, bool, error) {
	var c change
	var err error
	for range maxTries {
		if c, err = plan(); err != nil || c.none() {
			return c, false, err
		}
		if f.dryRun {
			f.say("would write %s (from %s):\n%s", c.to, c.from, bytes.TrimSpace(c.after))
			return c, true, nil
		}
		if err = c.apply(); !errors.Is(err, atomicfile.ErrMoved) {
			return c, err == nil, err
		}
	}
	return c, false, fmt.Errorf("%s: %w, %d times in a row: another program keeps writing it", c.from, atomicfile.ErrMoved, maxTries)
}

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
