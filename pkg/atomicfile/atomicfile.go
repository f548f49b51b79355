// Package atomicfile writes files that other programs may read at the same time: a reader finds the old contents or the new ones, never a
// part. For files that other programs write too, there is the Exchanger. (A pod's resolv.conf is changed in place, D-028.)
//
// It is safe for concurrent use by several processes if the pattern for temporary files has a *.
//
// On failure: a write is whole or absent. A process that is killed during a write leaves at most a temporary file in the same folder,
// with the name that its options choose.
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

// Options control how a file is written. The zero value writes one that only root may read.
type Options struct {
	Mode    fs.FileMode // of the file, whatever the umask
	Durable bool        // the file survives a power cut; state that a reboot removes anyway need not pay for it
	Folder  bool        // its folder is made if it is missing
	Owner   fs.FileInfo // the file gets this one's owner and group; nil: the process's
	// Attributes names a file whose extended attributes (SELinux's label, ACLs) the new one gets, too. If one of them cannot be
	// set, nothing is written, and the error is ErrAttributes. Attributes that the kernel does not list (trusted.*, without CAP_SYS_ADMIN)
	// are not copied. "": none.
	Attributes string
	// Pattern names the temporary file in the same folder, as for os.CreateTemp. Without a * there is one such name, so that crashes do not
	// leave more than one file; an existing file of that name is removed. "" is the file's own name with the suffix .new.
	Pattern string
}

// Write makes path hold data, or leaves it as it was.
func Write(path string, data []byte, o Options) error {
	return Stream(path, o, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Stream makes path hold what fill writes, or leaves it as it was.
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

// Temp writes a complete file next to path and returns its name, for a caller that moves it into place by itself.
func Temp(path string, data []byte, o Options) (name string, err error) {
	return temporary(path, o, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

func temporary(path string, o Options, fill func(io.Writer) error) (name string, err error) {
	f, err := create(path, o.Pattern)
	if o.Folder && errors.Is(err, fs.ErrNotExist) {
		// Once after a reboot; afterwards the folder is there and costs nothing.
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
	// The mode first: after the change of owner it needs CAP_FOWNER.
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
	if o.Attributes != "" { // last: a change of the owner removes some
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
	// Opening a pipe for writing would wait for a reader.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
}

// Rename moves a finished file into place. If durable, it returns once a power cut can no longer undo that.
func Rename(from, to string, durable bool) error {
	if err := os.Rename(from, to); err != nil || !durable {
		return err
	}
	return SyncFolder(filepath.Dir(to))
}

// SyncFolder makes the names in a folder survive a power cut.
func SyncFolder(folder string) (err error) {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// Read reads a regular file of at most most bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return data, nil
}

// Open opens a regular file with os.OpenFile's flags. It never waits: a pipe in the file's place must not hold up a pod's start.
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

// Sweep removes files with a prefix from a folder if they are older than age: temporary files that killed writers left. A missing folder
// has none.
func Sweep(folder, prefix string, age time.Duration) error {
	d, err := os.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		path := filepath.Join(folder, name)
		if st, statErr := os.Lstat(path); statErr == nil && time.Since(st.ModTime()) > age {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// Listen makes a socket that only root may use. network is "unix" or "unixpacket". It replaces the file at path in one step, so that a
// client connects either to this socket or to the one before. Closing it leaves the file, which may belong to another process by then.
// path may have at most 103 bytes, four less than the kernel allows (unix(7)), since the socket is first made with a suffix.
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
