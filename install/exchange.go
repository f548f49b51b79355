package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// errMoved means that somebody else wrote the file while we did; the plan is then out of date.
var errMoved = errors.New("the network's file changed meanwhile")

// replace puts the finished file temp in to's place if to still holds before, else it returns errMoved, and to holds what its
// owner wrote. To look first and rename then would leave a moment in which the owner's newer text is lost; so the two change
// places in one step, and what was taken out is looked at afterwards. temp is gone when it returns, but where the error names it.
func replace(temp, to string, before []byte) error {
	placed, now, err := readBoth(temp, to)
	if err == nil && !bytes.Equal(now, before) {
		err = errMoved
	}
	if err == nil {
		err = exchange(temp, to)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		// A filesystem that cannot, such as NFS: the look from before has to do.
		if err = rename(temp, to); err == nil {
			return nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = errMoved
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	out, err := lastText(temp, before)
	if err == nil && bytes.Equal(out, before) {
		return remove(temp)
	}
	// Its owner came between: his text goes back, and if he wrote once more meanwhile, that newer text, until what comes out
	// is what was put in before.
	for range maxTries {
		if err := errors.Join(err, exchange(temp, to)); err != nil {
			return fmt.Errorf("give its owner's text back, which is in %s: %w", temp, err)
		}
		back := out
		if out, err = os.ReadFile(temp); err == nil && bytes.Equal(out, placed) {
			break
		}
		placed = back
	}
	return errors.Join(errMoved, remove(temp))
}

// inFlight is how long a program may take from looking a name up to writing into what it found: microseconds, and more where
// others have the processor.
const inFlight = 20 * time.Millisecond

// lastText reads a file that was just taken out of its place. One who writes in place may have found it before that and not
// have begun to write: so a text that is still the old one is read once more after a moment.
func lastText(file string, old []byte) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(text, old) {
		return text, err
	}
	<-time.After(inFlight)
	return os.ReadFile(file)
}

func readBoth(a, b string) (textA, textB []byte, err error) {
	if textA, err = os.ReadFile(a); err == nil {
		textB, err = os.ReadFile(b)
	}
	return textA, textB, err
}

// exchange has two files change names, in one step.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// removeUnchanged removes a file if it still holds before, and else returns errMoved and leaves it.
func removeUnchanged(file string, before []byte) error {
	// It is taken out under a name of its own first, so that what is looked at is what is removed.
	aside := filepath.Join(filepath.Dir(file), asidePrefix+filepath.Base(file)+tempSuffix)
	if err := os.Rename(file, aside); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return errMoved
		}
		return err
	}
	now, err := lastText(aside, before)
	if err == nil && bytes.Equal(now, before) {
		return remove(aside)
	}
	back := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, file, unix.RENAME_NOREPLACE)
	if errors.Is(back, unix.EEXIST) { // its owner has written once more
		back = os.Remove(aside)
	}
	return errors.Join(back, err, errMoved)
}

// putBack gives a finished file its name, unless there is a file of that name: its owner has put his own back, or an earlier run
// was cut off.
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
