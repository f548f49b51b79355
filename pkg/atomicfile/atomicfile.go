// Package atomicfile replaces files in one step: a program that reads a file at the same time finds the old contents or the new ones,
// never a part. Exchanger is for files that other programs write too. (A pod's resolv.conf is changed in place instead, D-028.)
//
// Several processes may write the same file at once if the pattern for temporary files (Options.Pattern) has a *.
//
// On failure: a write is complete or has no effect. A process that is killed during a write leaves at most a temporary file in the same
// folder, named by Options.Pattern.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options control how a file is written. The zero value writes a file of mode 0, which only root may read.
type Options struct {
	Mode    fs.FileMode // mode of the file; the umask does not change it
	Durable bool        // sync to disk, so that the file survives a power cut; not worth it for state that a reboot removes anyway
	Folder  bool        // make the folder of the file if it is missing
	Owner   fs.FileInfo // the new file gets the owner and group of this file; nil: those of the process
	// Attributes is the path of a file whose extended attributes (SELinux label, ACLs) the new file gets too. If one of them cannot be
	// set, nothing is written, and the error is ErrAttributes. Attributes that the kernel does not list (trusted.* without CAP_SYS_ADMIN)
	// are not copied. "" copies none.
	Attributes string
	// Pattern is the name of the temporary file in the same folder, as for os.CreateTemp. Without a *, the name is always the same:
	// crashes leave at most one such file, and the next write removes it. "" stands for the file's own name with the suffix .new.
	Pattern string
}

// Write replaces the contents of the file at path by data. If it returns an error, the file is unchanged, unless only the final sync of its
// folder failed.
func Write(path string, data []byte, o Options) error {
	return Stream(path, o, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Stream replaces the contents of the file at path by those that fill writes. On an error, the file is unchanged, as with Write.
func Stream(path string, o Options, fill func(io.Writer) error) error {
	temp, err := temporary(path, o, fill)
	if err != nil {
		return err
	}
	if err := Rename(temp, path, o.Durable); err != nil {
		os.Remove(temp)
		return err
	}
	return nil
}

// Temp writes data to a temporary file next to path and returns its name. The caller moves the file into place.
func Temp(path string, data []byte, o Options) (name string, err error) {
	return temporary(path, o, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

func temporary(path string, o Options, fill func(io.Writer) error) (name string, err error) {
	defer func() {
		// A random name would make each failure differ from the one before, which is what decides whether it is logged.
		if failed := (*fs.PathError)(nil); errors.As(err, &failed) && filepath.Dir(failed.Path) == filepath.Dir(path) {
			failed.Path = path
		}
	}()
	f, err := create(path, o.Pattern)
	if o.Folder && errors.Is(err, fs.ErrNotExist) {
		// Call MkdirAll only after a failure: usually only the first write after a reboot finds the folder missing.
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			f, err = create(path, o.Pattern)
		}
	}
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := fill(f); err != nil {
		return "", err
	}
	// Set the mode before the owner: if the process does not own the file any more, Chmod needs CAP_FOWNER.
	if err := f.Chmod(o.Mode); err != nil {
		return "", err
	}
	if o.Owner != nil {
		if owner, ok := o.Owner.Sys().(*syscall.Stat_t); ok {
			if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return "", err
			}
		}
	}
	if o.Attributes != "" { // last, because a change of the owner removes some attributes
		if err := copyAttributes(f, o.Attributes); err != nil {
			return "", err
		}
	}
	if o.Durable {
		return f.Name(), f.Sync()
	}
	return f.Name(), nil
}

func create(path, pattern string) (*os.File, error) {
	if strings.Contains(pattern, "*") {
		return os.CreateTemp(filepath.Dir(path), pattern)
	}
	name := path + ".new"
	if pattern != "" {
		name = filepath.Join(filepath.Dir(path), pattern)
	}
	// Remove an old file instead of opening it: it could be a pipe, and opening a pipe for writing waits for a reader.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
}

// Rename moves a finished file into place. With durable, it also syncs the folder, so that the move survives a power cut.
func Rename(from, to string, durable bool) error {
	if err := os.Rename(from, to); err != nil || !durable {
		return err
	}
	return SyncFolder(filepath.Dir(to))
}

// SyncFolder syncs a folder to disk, so that new, renamed and removed names in it survive a power cut.
func SyncFolder(folder string) (err error) {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// Read reads a regular file. It returns an error if the file has more than most bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, most)
}

// ReadAll reads the rest of a file. It returns an error if that is more than most bytes.
func ReadAll(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", f.Name(), most)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// Open opens a regular file with os.OpenFile's flags, and returns an error for any other kind of file. It never blocks: a pipe at this
// path must not delay a pod's start.
func Open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Sweep removes the files in a folder whose names begin with prefix, if they are older than age: temporary files of writers that were
// killed. It succeeds if the folder is missing. A modification time that is ahead by more than age counts as old: the clock has stepped
// back since.
func Sweep(folder, prefix string, age time.Duration) error {
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), prefix) {
			continue
		}
		if st, statErr := f.Info(); statErr == nil && time.Since(st.ModTime()).Abs() > age {
			err = errors.Join(err, os.Remove(filepath.Join(folder, f.Name())))
		}
	}
	return err
}

// Listen makes a Unix socket that only root may use; network is "unix" or "unixpacket". It replaces the file at path in one step, so a
// client connects either to the previous socket or to the new one. Closing the listener leaves the file, because another process may have
// replaced it by then. path may have at most 103 bytes, four fewer than the kernel allows (unix(7)), because the socket is first made with
// the suffix .new.
func Listen(network, path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: fresh, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o600), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
