package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A temporary file is hidden and ends in .tmp: a runtime takes every .conf, .conflist and .json in its folder for a
// network, and lists the programs of its binary folder. The random part keeps two installers from sharing one.
const (
	tempPrefix = ".neardns-install-"
	tempSuffix = ".tmp"
	// What changes places with a network's list, and what is taken away from beside it, names that list, so that a later run
	// can give its owner's text back if this one is killed amid it.
	placedPrefix = tempPrefix + "placed-" // then the digest of what is put in place, a dash, the list's name
	asidePrefix  = tempPrefix + "old-"    // then the file's name
)

// writeTemp writes a file of its own name in folder, complete on the disk and with its final mode (and owner, that of
// like if there is one) before anyone renames it.
func writeTemp(folder string, content []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	f, err := os.CreateTemp(folder, tempPrefix+"*"+tempSuffix)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		return "", fmt.Errorf("%w (mount the folder writable; where SELinux is enforced, run this container as spc_t: the manifests in install/base do both)", err)
	}
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(content); err != nil {
		return "", err
	}
	// The mode first: what belongs to another is changed only with CAP_FOWNER.
	if err := f.Chmod(mode); err != nil {
		return "", err
	}
	if like != nil {
		if owner, ok := like.Sys().(*syscall.Stat_t); ok {
			if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return "", err
			}
		}
	}
	return f.Name(), f.Sync()
}

// rename gives a finished file its name, and does not return before a power cut could no longer undo that. It must stay
// within one folder: runtimes do not notice a file that comes from another.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(to))
}

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
	return syncFolder(filepath.Dir(to))
}

// remove takes a file away, for good as far as the disk goes.
func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncFolder(filepath.Dir(file))
}

func syncFolder(folder string) (err error) {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// placed renames temp, which is complete and holds content, to what says that it is to change places with list.
func placed(temp, list string, content []byte) (name string, err error) {
	name = filepath.Join(filepath.Dir(list), placedName(list, content))
	return name, os.Rename(temp, name)
}

// placedName needs nothing random: one installer works on a folder at a time.
func placedName(list string, content []byte) string {
	return placedPrefix + digest(content) + "-" + filepath.Base(list) + tempSuffix
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// sweep removes what an installer that was killed left in folder, and first gives back what it had taken out of its place: a
// network's owner may have written it while it was being looked at. It may run only under the lock, where no temporary file
// belongs to anyone alive.
func sweep(folder string) error {
	stale, err := filepath.Glob(filepath.Join(folder, tempPrefix+"*"+tempSuffix))
	if err != nil {
		return err
	}
	for _, file := range stale {
		if err := giveBack(file); err != nil {
			return fmt.Errorf("give back what an earlier run took out of its place: %w", err)
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove what an earlier run left: %w", err)
		}
	}
	return nil
}

// giveBack puts a text that was taken out of its place back there, unless its owner has written another one since.
func giveBack(file string) error {
	folder, name := filepath.Split(file)
	name = strings.TrimSuffix(name, tempSuffix)
	if rest, ok := strings.CutPrefix(name, asidePrefix); ok {
		err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, filepath.Join(folder, rest), unix.RENAME_NOREPLACE)
		if err == nil || errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	}
	rest, ok := strings.CutPrefix(name, placedPrefix)
	placed, list, named := strings.Cut(rest, "-")
	if !ok || !named {
		return nil
	}
	list = filepath.Join(folder, list)
	out, in, err := readBoth(file, list)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its owner has taken the network away
	}
	if err != nil {
		return err
	}
	switch {
	case digest(out) == placed: // it never came into its place, or came out of it again
		return nil
	case digest(in) == placed, newer(file, list):
		// What stands there is the installer's, or an owner's text from before this one. This run makes its change anew.
		return errors.Join(exchange(file, list), syncFolder(folder))
	}
	return nil
}

// newer tells whether a was written after b.
func newer(a, b string) bool {
	x, errA := os.Lstat(a)
	y, errB := os.Lstat(b)
	return errA == nil && errB == nil && x.ModTime().After(y.ModTime())
}

// lock keeps two installers from working on one folder at the same time, such as the old and the new pod of a rolling
// update. It locks the folder itself: nothing is left behind, and the kernel frees it when the holder dies.
func lock(ctx context.Context, folder string) (unlock func(), err error) {
	d, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w", folder, err)
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, fmt.Errorf("another installer works on %s: %w", folder, ctx.Err())
		case <-tick.C:
		}
	}
}
