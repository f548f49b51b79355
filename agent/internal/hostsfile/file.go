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

// Ways in which the file is written.
const (
	Exchanged = "exchanged" // a new file takes the old one's place
	InPlace   = "in-place"  // the file itself is written, from our first line on
)

const (
	name     = "etc/hosts"
	tries    = 5 // against another program that writes at the same moments
	lockWait = 5 * time.Second

	mountedItself = "the file itself is mounted: mount its folder"
)

// exchanger's prefix names the files that a killed run leaves beside the hosts file.
func exchanger() atomicfile.Exchanger { return atomicfile.Exchanger{Prefix: ".neardns-hosts-"} }

// file is the node's hosts file below the folder that stands for the host's root. It is used by one goroutine at a time.
type file struct {
	root string
	way  string // "" until it was read
	why  string // it is written in place
}

// content is the file as it was read.
type content struct {
	path string // where its links lead
	text []byte
	info os.FileInfo
}

// read reads the file as somebody would whose root is the folder: links, also those with a whole path, lead to what is below it
// (openat2, Linux 5.6). It is an error where a text may not be all of the file.
func (f *file) read() (c content, err error) {
	top, err := unix.Open(f.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return c, &os.PathError{Op: "open", Path: f.root, Err: err}
	}
	defer unix.Close(top) //nolint:errcheck // only looked through
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
	if c.text, err = io.ReadAll(io.LimitReader(opened, hostsfile.MaxSize+1)); err != nil {
		return c, err
	}
	after, err := opened.Stat()
	switch {
	case err != nil:
		return c, err
	case len(c.text) > hostsfile.MaxSize:
		return c, fmt.Errorf("%s is larger than %d bytes, and is left alone", f.shown(), hostsfile.MaxSize)
	case len(c.text) == 0:
		return c, fmt.Errorf("%s is empty, and is left alone: give it the node's own names (127.0.0.1 localhost) back", f.shown())
	case after.Size() != int64(len(c.text)) || c.info.Size() != after.Size():
		return c, fmt.Errorf("%s is being written: %d bytes were read, of %d", f.shown(), len(c.text), after.Size())
	}
	if f.way != InPlace {
		f.choose(fd)
	}
	return c, nil
}

// shown is the file's name as errors have it.
func (f *file) shown() string { return filepath.Join(f.root, name) }

// choose decides how the file is written. Nothing can take the place of a file that is a mount itself (EBUSY), and a new file would break
// a hard link: the other name would keep the old text.
func (f *file) choose(fd int) {
	f.way = Exchanged
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &st)
	if err == nil && st.Attributes_mask&st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 { // Linux 5.8
		f.inPlace(mountedItself)
	} else if err == nil && st.Nlink > 1 {
		f.inPlace("the file has another name (a hard link)")
	}
}

func (f *file) inPlace(why string) { f.way, f.why = InPlace, why }

// apply gives the file the lines of entries, or tells that it has them. left are the names that foreign lines have. Where another
// program writes meanwhile, it begins anew with that one's text.
func (f *file) apply(ctx context.Context, entries []hostsfile.Entry) (written bool, left []string, err error) {
	open := false // by another program, for writing
	for range tries {
		var c content
		if c, err = f.read(); err != nil {
			return false, nil, err
		}
		way := f.way
		if open {
			way = InPlace // what that program appends goes into this file, not into one that was replaced
		}
		written, left, err = f.write(ctx, c, entries, way)
		open = errors.Is(err, atomicfile.ErrOpen)
		// Another writer may exchange the file after we opened it, and before we asked for its name: that is the name of what goes.
		if !open && !errors.Is(err, atomicfile.ErrMoved) && !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", f.shown(), err)
	}
	return written, left, err
}

func (f *file) write(ctx context.Context, c content, entries []hostsfile.Entry, way string) (written bool, left []string, err error) {
	after, left := hostsfile.Apply(c.text, entries)
	if bytes.Equal(after, c.text) {
		return false, left, nil
	}
	if len(after) > hostsfile.MaxSize {
		return false, left, fmt.Errorf("it would have more than %d bytes", hostsfile.MaxSize)
	}
	var steps []hostsfile.Step
	if way == InPlace {
		if steps, left = hostsfile.InPlace(c.text, entries); len(steps) == 0 {
			return false, left, nil
		}
	}
	folder := filepath.Dir(c.path)
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	unlock, err := atomicfile.Lock(ctx, folder)
	if err != nil {
		return false, left, err
	}
	defer unlock()
	if way == InPlace {
		return true, left, inPlace(c, steps)
	}
	if err := exchanger().Sweep(folder); err != nil {
		return false, left, err
	}
	err = exchanger().Write(c.path, c.text, after, atomicfile.Options{Mode: c.info.Mode().Perm(), Owner: c.info, Attributes: c.path})
	switch {
	case errors.Is(err, atomicfile.ErrAttributes):
		f.inPlace(err.Error())
		err = atomicfile.ErrMoved // once more, in that way
	case errors.Is(err, unix.EBUSY):
		f.inPlace(mountedItself)
		err = atomicfile.ErrMoved
	case errors.Is(err, unix.EROFS):
		err = fmt.Errorf("%w: mount the folder writable", err)
	}
	return err == nil, left, err
}

// inPlace takes the steps on the file itself, if it still holds what was read. Where one fails, the text from before is put back.
func inPlace(c content, steps []hostsfile.Step) (err error) {
	w, err := os.OpenFile(c.path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	now, err := io.ReadAll(io.LimitReader(w, hostsfile.MaxSize+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(now, c.text) {
		return atomicfile.ErrMoved
	}
	from, end := int64(len(now)), int64(len(now))
	for _, s := range steps {
		from, end = min(from, s.At), max(end, s.At+int64(len(s.Text)))
	}
	if end > int64(len(now)) { // a full disk is found before anything is written; a filesystem that cannot tell (tmpfs can) finds it below
		err := unix.Fallocate(int(w.Fd()), unix.FALLOC_FL_KEEP_SIZE, int64(len(now)), end-int64(len(now)))
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	for _, s := range steps {
		if s.Text == nil {
			err = w.Truncate(s.At)
		} else {
			_, err = w.WriteAt(s.Text, s.At)
		}
		if err != nil {
			_, back := w.WriteAt(now[from:], from)
			return errors.Join(err, back, w.Truncate(int64(len(now))))
		}
	}
	return w.Sync()
}

// Remove takes our lines out of the hosts file below root, and whatever a killed run left beside it. had tells whether there were any.
// A file that is not there has none.
func Remove(ctx context.Context, root string) (had bool, err error) {
	f := &file{root: root}
	c, err := f.read()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil && c.path != "":
		if ours, look := marked(c.path); look == nil && !ours { // whatever ails it is none of ours
			return false, nil
		}
		return false, fmt.Errorf("lines that end in %q may stand in it, and have to be taken out by hand: %w", hostsfile.Marker, err)
	case err != nil:
		return false, err
	}
	if had, _, err = f.apply(ctx, nil); err != nil {
		return false, err
	}
	unlock, err := atomicfile.Lock(ctx, filepath.Dir(c.path))
	if err != nil {
		return had, err
	}
	defer unlock()
	return had, exchanger().Sweep(filepath.Dir(c.path))
}

// marked tells whether a file of any size has a line of ours.
func marked(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return false, err
	}
	part, kept := make([]byte, 1<<16), 0
	for {
		n, err := f.Read(part[kept:])
		if bytes.Contains(part[:kept+n], []byte(hostsfile.Marker)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		rest := min(kept+n, len(hostsfile.Marker)) // the marker may stand across two parts
		kept = copy(part, part[kept+n-rest:kept+n])
	}
}
