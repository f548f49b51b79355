package atomicfile

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
	"time"

	"golang.org/x/sys/unix"
)

// ErrMoved means that another program wrote the file meanwhile, so that a new text made from its old one is out of date.
var ErrMoved = errors.New("another program changed the file meanwhile")

// ErrOpen means that a program has the file open for writing: what it writes later would go into the file that was replaced.
var ErrOpen = errors.New("another program has the file open for writing")

// Exchanger writes files that other programs write too, without a lock: it never loses their text (D-026). Prefix begins the names of its
// temporary files in the same folder; they end in .tmp. One exchanger of a prefix works on a folder at a time (see Lock).
type Exchanger struct{ Prefix string }

// tempSuffix ends the names: runtimes take every .conf, .conflist and .json in their folder for a network.
const tempSuffix = ".tmp"

// putBacks bounds how often the owner's text is restored while the owner goes on writing.
const putBacks = 5

// The names of files that were exchanged or moved away contain the file's name, so that a later run can restore the owner's text if this
// one is killed in between.
func (x Exchanger) placedPrefix() string { return x.Prefix + "placed-" } // then the digest of what is put in place, a dash, the file's name
func (x Exchanger) asidePrefix() string  { return x.Prefix + "old-" }    // then the file's name

// placedName needs nothing random: one exchanger works on a folder at a time.
func (x Exchanger) placedName(file string, after []byte) string {
	return x.placedPrefix() + digest(after) + "-" + filepath.Base(file) + tempSuffix
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// Write makes the file hold after, durably, if it holds before; else it returns ErrMoved, and the file holds what its owner wrote, or
// ErrOpen, and the file is as it was. o's Pattern and Durable have no effect.
func (x Exchanger) Write(file string, before, after []byte, o Options) error {
	o.Pattern, o.Durable = x.Prefix+"*"+tempSuffix, true
	temp, err := Temp(file, after, o)
	if err != nil {
		return err
	}
	// Only a complete file has a name from which a later run restores.
	placed := filepath.Join(filepath.Dir(file), x.placedName(file, after))
	if err := os.Rename(temp, placed); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return replace(placed, file, before)
}

// replace puts the finished file temp in to's place if to still holds before, else it returns ErrMoved, and to holds what its
// owner wrote. Checking first and renaming then could lose a newer text of the owner; so the two files
// change names in one step, and the old one is checked afterwards. temp is gone on return, unless the error names it.
func replace(temp, to string, before []byte) error {
	placed, now, err := readBoth(temp, to)
	if err == nil && !bytes.Equal(now, before) {
		err = ErrMoved
	}
	if err == nil && hasWriter(to) {
		err = ErrOpen
	}
	if err == nil {
		err = exchange(temp, to)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		// A filesystem without exchange, such as NFS: the check above has to suffice.
		if err = Rename(temp, to, true); err == nil {
			return nil
		}
	}
	if errors.Is(err, os.ErrNotExist) {
		err = ErrMoved
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	out, err := lastText(temp, before)
	open := hasWriter(temp) // a program may have opened it since the check above
	if err == nil && bytes.Equal(out, before) && !open {
		return remove(temp)
	}
	// The owner wrote meanwhile: restore that text. If the owner writes again during this, restore the newer one, until the exchange
	// returns the text that was put in before.
	for range putBacks {
		if err := errors.Join(err, exchange(temp, to)); err != nil {
			return fmt.Errorf("give its owner's text back, which is in %s: %w", temp, err)
		}
		back := out
		if out, err = os.ReadFile(temp); err == nil && bytes.Equal(out, placed) {
			break
		}
		placed = back
	}
	return errors.Join(ErrMoved, remove(temp))
}

// hasWriter reports whether a program has the file open for writing. The kernel refuses a read lease then (fcntl(2)). It is false if the
// kernel cannot tell: another user's file, or a filesystem without leases.
func hasWriter(file string) bool {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // ends the lease
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

// inFlight is how long a program may take from opening a file to writing into it: microseconds, and more on a busy CPU.
const inFlight = 20 * time.Millisecond

// lastText reads a file that was just taken out of its place. A program that writes in place may have opened it before
// that and not have begun to write, so an unchanged text is read again after inFlight.
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

// exchange swaps the names of two files in one step.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// Remove removes a file if it still holds before, and else returns ErrMoved and leaves it.
func (x Exchanger) Remove(file string, before []byte) error {
	// It is taken out under a name of its own first, so that what is looked at is what is removed.
	aside := filepath.Join(filepath.Dir(file), x.asidePrefix()+filepath.Base(file)+tempSuffix)
	if err := os.Rename(file, aside); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return ErrMoved
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
	return errors.Join(back, err, ErrMoved)
}

// remove takes a file away, for good as far as the disk goes.
func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return SyncFolder(filepath.Dir(file))
}

// Sweep removes what an exchanger that was killed left in folder, and first restores files that it had moved away: a
// file's owner may have written it meanwhile. It may run only under the lock, where no temporary file
// belongs to anyone alive.
func (x Exchanger) Sweep(folder string) error {
	stale, err := filepath.Glob(filepath.Join(folder, x.Prefix+"*"+tempSuffix))
	if err != nil {
		return err
	}
	for _, file := range stale {
		if err := x.restore(file); err != nil {
			return fmt.Errorf("restore a file that an earlier run moved away: %w", err)
		}
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a file that an earlier run left: %w", err)
		}
	}
	return nil
}

// restore puts a file that an earlier run moved away back into place, unless its owner has written another one since.
func (x Exchanger) restore(temp string) error {
	folder, name := filepath.Split(temp)
	name = strings.TrimSuffix(name, tempSuffix)
	if rest, ok := strings.CutPrefix(name, x.asidePrefix()); ok {
		err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, filepath.Join(folder, rest), unix.RENAME_NOREPLACE)
		if err == nil || errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	}
	rest, ok := strings.CutPrefix(name, x.placedPrefix())
	placed, file, named := strings.Cut(rest, "-")
	if !ok || !named {
		return nil
	}
	file = filepath.Join(folder, file)
	out, in, err := readBoth(temp, file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its owner has removed it
	}
	if err != nil {
		return err
	}
	switch {
	case digest(out) == placed: // it never reached its place, or was taken out again
		return nil
	case digest(in) == placed, newer(temp, file):
		// The file in place is the exchanger's, or an older text of the owner. This run makes its change again.
		return errors.Join(exchange(temp, file), SyncFolder(folder))
	}
	return nil
}

// newer reports whether a was written after b.
func newer(a, b string) bool {
	x, errA := os.Lstat(a)
	y, errB := os.Lstat(b)
	return errA == nil && errB == nil && x.ModTime().After(y.ModTime())
}

// lockPoll is the pause between attempts to get a lock that another program holds.
const lockPoll = 100 * time.Millisecond

// Lock keeps two neardns programs from working on one folder at the same time, for example the old and the new pod of a rolling update. It
// waits until ctx ends. It locks the folder itself: nothing is left behind, and the kernel frees it when the holder dies.
func Lock(ctx context.Context, folder string) (unlock func(), err error) {
	d, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
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
			return nil, fmt.Errorf("another program of ours works on %s: %w", folder, ctx.Err())
		case <-tick.C:
		}
	}
}
