package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
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
	o := atomicfile.Options{Mode: mode, Durable: true, Owner: like, Pattern: tempPrefix + "*" + tempSuffix}
	name, err = atomicfile.Temp(filepath.Join(folder, "x"), content, o)
	if made := (*os.PathError)(nil); errors.As(err, &made) && made.Op == "open" && (errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) {
		err = fmt.Errorf("%w (mount the folder writable; where SELinux is enforced, run this container as spc_t: the manifests in install/base do both)", err)
	}
	return name, err
}

// rename gives a finished file its name, and does not return before a power cut could no longer undo that. It must stay
// within one folder: runtimes do not notice a file that comes from another.
func rename(from, to string) error { return atomicfile.Rename(from, to, true) }

// remove takes a file away, for good as far as the disk goes.
func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(file))
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
