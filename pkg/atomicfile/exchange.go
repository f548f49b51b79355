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

	"github.com/neardns/neardns/pkg/tick"
)

// ErrMoved means that another program changed or removed the file after it was read, so new contents made from the old ones are out of
// date.
var ErrMoved = errors.New("another program changed the file meanwhile")

// ErrOpen means that another program has the file open for writing. If the file were replaced, later writes of that program would be lost.
var ErrOpen = errors.New("another program has the file open for writing")

// Exchanger replaces a file that another program, its owner, writes too and without a lock. It takes care not to lose what the owner writes
// (D-026). Its temporary files are in the same folder; their names begin with Prefix and end in .tmp. Only one Exchanger with the same
// Prefix may work in a folder at a time (see Lock).
type Exchanger struct{ Prefix string }

// tempSuffix ends the names of temporary files. It must not be .conf, .conflist or .json: container runtimes take each such file in their
// folder for a network's configuration.
const tempSuffix = ".tmp"

// The names of complete temporary files contain the file's name, so that if this process is killed, Sweep of a later run can restore the
// text of the file's owner. placedPrefix is for the new contents, asidePrefix for a file that is moved away to be removed.
func (x Exchanger) placedPrefix() string { return x.Prefix + "placed-" } // followed by the new contents' digest, a dash, the file's name
func (x Exchanger) asidePrefix() string  { return x.Prefix + "old-" }    // followed by the file's name

// placedName needs no random part, because only one Exchanger works in a folder at a time.
func (x Exchanger) placedName(file string, after []byte) string {
	return x.placedPrefix() + digest(after) + "-" + filepath.Base(file) + tempSuffix
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}

// Write changes the file's contents from before, as they were read, to after, durably. If another program has changed the file, or
// opens it for writing during the exchange, Write returns ErrMoved, and the file keeps that program's contents. If another program has
// the file open for writing before, Write returns ErrOpen, and the file is unchanged. o.Pattern and o.Durable have no effect.
func (x Exchanger) Write(file string, before, after []byte, o Options) error {
	o.Pattern, o.Durable = x.Prefix+"*"+tempSuffix, true
	temp, err := Temp(file, after, o)
	if err != nil {
		return err
	}
	// Give the file this name only when it is complete, because a later run restores from files with such names.
	placed := filepath.Join(filepath.Dir(file), x.placedName(file, after))
	if err := os.Rename(temp, placed); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return replace(placed, file, before)
}

// replace puts the finished file temp in the place of to, if the contents of to still equal before. Otherwise it returns ErrMoved or
// ErrOpen, and to has its owner's contents. A check and then a rename could lose text that the owner writes in between. So replace
// exchanges the names of the two files in one step, and checks the old file afterwards. On return temp is removed, unless the error names
// it.
func replace(temp, to string, before []byte) error {
	placed, err := os.ReadFile(temp)
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	now, err := os.ReadFile(to)
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
		// This filesystem has no RENAME_EXCHANGE, for example NFS. The check above must suffice before a plain rename.
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
	open := hasWriter(temp) // another program may have opened it after the check above
	if err == nil && bytes.Equal(out, before) && !open {
		return Remove(temp)
	}
	// The owner wrote during the exchange or may still write: exchange again to restore its text. If the owner has written again by then,
	// restore that newer text, and so on, until the file that comes out is the one that was put in last. A limit could lose the owner's last
	// text.
	for {
		if err := errors.Join(err, exchange(temp, to)); err != nil {
			return fmt.Errorf("restore the text of the file's owner, which is in %s: %w", temp, err)
		}
		back := out
		if out, err = os.ReadFile(temp); err == nil && bytes.Equal(out, placed) {
			return errors.Join(ErrMoved, Remove(temp))
		}
		placed = back
	}
}

// hasWriter reports whether a program has the file open for writing. The kernel then refuses a read lease on the file (fcntl(2)). It
// returns false if the kernel cannot tell: for another user's file, or on a filesystem without leases.
func hasWriter(file string) bool {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close() // ends the read lease on the file
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

// inFlight is how long a program may take from opening a file to writing to it. Usually it takes microseconds, on a busy CPU longer.
const inFlight = 20 * time.Millisecond

// lastText reads a file that was just moved out of its place. A program may have opened the file before and write to it only now. So if
// the contents are still old, lastText waits for inFlight and reads again.
func lastText(file string, old []byte) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(text, old) {
		return text, err
	}
	<-time.After(inFlight)
	return os.ReadFile(file)
}

// exchange swaps the names of two files in one step.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// Remove removes a file if its contents still equal before. Otherwise it returns ErrMoved and the file stays.
func (x Exchanger) Remove(file string, before []byte) error {
	// Rename the file before it is checked, so that no other program can replace it between check and removal.
	aside := filepath.Join(filepath.Dir(file), x.asidePrefix()+filepath.Base(file)+tempSuffix)
	if err := os.Rename(file, aside); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return ErrMoved
		}
		return err
	}
	now, err := lastText(aside, before)
	if err == nil && bytes.Equal(now, before) {
		return Remove(aside)
	}
	back := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, file, unix.RENAME_NOREPLACE)
	if errors.Is(back, unix.EEXIST) { // the owner has made a new file meanwhile
		back = os.Remove(aside)
	}
	return errors.Join(back, err, ErrMoved)
}

// Remove removes a file and syncs its folder, so that a power cut does not restore it. It succeeds if the file is missing.
func Remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return SyncFolder(filepath.Dir(file))
}

// Sweep removes the temporary files that a killed Exchanger left in folder. First it restores files that the Exchanger had moved out of
// their place, because their owner may have written to them meanwhile. Call it only under Lock: it would also remove the temporary files
// of a running Exchanger.
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

// restore puts a file that an earlier run moved away back into its place, unless the owner has written a newer one there.
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
	now, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the file's owner has removed it
	}
	if err != nil || digest(now) != placed {
		return err // the file in place is its owner's
	}
	// temp has the owner's last text. The current run then makes its change to it.
	return errors.Join(exchange(temp, file), SyncFolder(folder))
}

// lockPoll is the pause between two attempts to get the lock of Lock while another program has it.
const lockPoll = 100 * time.Millisecond

// Lock keeps two neardns programs from working on one folder at the same time, for example the old and the new pod of a rolling update. It
// waits for the other program until ctx ends. It locks the folder itself, so there is no lock file to remove, and the kernel releases the
// lock when the process ends.
func Lock(ctx context.Context, folder string) (unlock func(), err error) {
	d, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w", folder, err)
		}
		if !tick.Pause(ctx, lockPoll) {
			_ = d.Close()
			return nil, fmt.Errorf("another neardns program works on %s: %w", folder, ctx.Err())
		}
	}
}
