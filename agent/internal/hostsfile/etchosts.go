package hostsfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/hostsfile"
)

const (
	name     = "etc/hosts"
	maxTries = 5 // a write may fail because another program changes the file at the same moment
	lockWait = 5 * time.Second
)

// errMounted means that the hosts file is itself a mount point, which the kernel does not let another file replace (EBUSY).
var errMounted = errors.New("the file itself is mounted, so it cannot be replaced: mount its folder, as install/hosts does")

// exchanger returns the Exchanger that replaces the hosts file. Its prefix is that of its temporary files, which a killed process leaves
// next to the hosts file.
func exchanger() atomicfile.Exchanger { return atomicfile.Exchanger{Prefix: ".neardns-hosts-"} }

// file is the node's hosts file, below root, where the host's root is mounted. One goroutine uses it at a time.
type file struct{ root string }

// content is the hosts file as it was read.
type content struct {
	path string // with all symbolic links resolved
	text []byte
	info os.FileInfo
}

// read reads the hosts file. It resolves symbolic links as a process whose root is the folder root would: absolute ones too lead to files
// below it (openat2, Linux 5.6). It returns an error if the text may be incomplete, or if the file cannot be replaced safely.
func (f *file) read() (c content, err error) {
	top, err := unix.Open(f.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return c, &os.PathError{Op: "open", Path: f.root, Err: err}
	}
	defer unix.Close(top) //nolint:errcheck // only the path is resolved with it
	fd, err := unix.Openat2(top, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		err = &os.PathError{Op: "open", Path: f.shown(), Err: err}
		if st, statErr := os.Lstat(f.shown()); statErr == nil && st.Mode()&os.ModeSymlink != 0 {
			err = fmt.Errorf("%w: it is a link that leads out of what is mounted: mount that folder, too, or make it a file", err)
		}
		return c, err
	}
	opened := os.NewFile(uintptr(fd), f.shown())
	defer opened.Close()
	if c.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return c, err
	}
	if c.info, err = opened.Stat(); err != nil {
		return c, err
	}
	if !c.info.Mode().IsRegular() {
		return c, fmt.Errorf("%s is not a regular file", f.shown())
	}
	if err := checkReplaceable(fd); err != nil {
		return c, fmt.Errorf("%s: %w", f.shown(), err)
	}
	if c.text, err = io.ReadAll(io.LimitReader(opened, hostsfile.MaxSize+1)); err != nil {
		return c, err
	}
	after, err := opened.Stat()
	switch {
	case err != nil:
		return c, err
	case len(c.text) > hostsfile.MaxSize:
		return c, fmt.Errorf("%s is larger than %d bytes, and stays as it is", f.shown(), hostsfile.MaxSize)
	case len(c.text) == 0:
		return c, fmt.Errorf("%s is empty, and stays as it is: write the node's own names (127.0.0.1 localhost) into it", f.shown())
	case after.Size() != int64(len(c.text)) || c.info.Size() != after.Size():
		return c, fmt.Errorf("%s is being written: %d bytes were read, of %d", f.shown(), len(c.text), after.Size())
	}
	return c, nil
}

// shown returns the file's path for error messages.
func (f *file) shown() string { return filepath.Join(f.root, name) }

// checkReplaceable returns an error if the file is a mount point or has a hard link. A hard link's other name would keep the old text.
func checkReplaceable(fd int) error {
	var st unix.Statx_t
	switch err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_NLINK, &st); {
	case err != nil:
		return nil //nolint:nilerr // without statx(2), as under some seccomp filters, the exchange of a mount point fails with EBUSY
	case st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0: // Linux 5.8
		return errMounted
	case st.Nlink > 1:
		return errors.New("the file has another name (a hard link), which would keep the old text: make one of the two a symbolic link")
	}
	return nil
}

// apply makes the lines of entries the only lines of neardns in the file. left has the names that are not written because another
// program's lines have them. If another program changes the file meanwhile, apply starts again with the new text; it makes up to maxTries
// tries in all.
func (f *file) apply(ctx context.Context, entries []hostsfile.Entry) (written bool, left []string, err error) {
	for range maxTries {
		var c content
		if c, err = f.read(); err != nil {
			return false, nil, err
		}
		written, left, err = f.write(ctx, c, entries)
		// If another program replaces the file between open and readlink, c.path is a name that no longer exists.
		if !errors.Is(err, atomicfile.ErrMoved) && !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", f.shown(), err)
	}
	return written, left, err
}

func (f *file) write(ctx context.Context, c content, entries []hostsfile.Entry) (written bool, left []string, err error) {
	after, left := hostsfile.Apply(c.text, entries)
	if bytes.Equal(after, c.text) {
		return false, left, nil
	}
	if len(after) > hostsfile.MaxSize {
		return false, left, fmt.Errorf("it would have more than %d bytes", hostsfile.MaxSize)
	}
	folder := filepath.Dir(c.path)
	unlock, err := lock(ctx, folder)
	if err != nil {
		return false, left, err
	}
	defer unlock()
	if err := exchanger().Sweep(folder); err != nil {
		return false, left, err
	}
	err = exchanger().Write(c.path, c.text, after, atomicfile.Options{Mode: c.info.Mode().Perm(), Owner: c.info, Attributes: c.path})
	switch {
	case errors.Is(err, unix.EBUSY): // mount point, on kernels before 5.8
		err = errMounted
	case errors.Is(err, unix.EROFS):
		err = fmt.Errorf("%w: mount the folder writable", err)
	case errors.Is(err, atomicfile.ErrOpen): // what that program writes would be lost with the replaced file
		err = fmt.Errorf("%w: the lines are written when that program has closed it", err)
	}
	return err == nil, left, err
}

func lock(ctx context.Context, folder string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return atomicfile.Lock(ctx, folder)
}

// Remove removes neardns's lines from the hosts file below root. had reports whether the file had such lines; it is false if the file does
// not exist.
func Remove(ctx context.Context, root string) (had bool, err error) {
	f := &file{root: root}
	c, err := f.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil && c.path != "":
		if ours, readErr := hasMarker(c.path); readErr == nil && !ours { // without lines of neardns, the file's fault does not matter
			return false, nil
		}
		return false, fmt.Errorf("remove lines with %q by hand, the file may have some: %w", hostsfile.Marker, err)
	case err != nil:
		return false, err
	}
	if had, _, err = f.apply(ctx, nil); err != nil {
		return false, err
	}
	unlock, err := lock(ctx, filepath.Dir(c.path))
	if err != nil {
		return had, err
	}
	defer unlock()
	return had, exchanger().Sweep(filepath.Dir(c.path))
}

// hasMarker reports whether a file has a line of neardns. The file may have any size.
func hasMarker(path string) (bool, error) {
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return false, err
	}
	text, err := os.ReadFile(path)
	return bytes.Contains(text, []byte(hostsfile.Marker)), err
}
