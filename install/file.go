package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// A temporary file is hidden and ends in .tmp: a runtime takes every .conf, .conflist and .json in its folder for a
// network, and lists the programs of its binary folder. The random part keeps two installers from sharing one.
const (
	tempPrefix = ".neardns-install-"
	tempSuffix = ".tmp"
)

// writeTemp writes a file of its own name in folder, complete on the disk and with its final mode (and owner, that of
// like if there is one) before anyone renames it.
func writeTemp(folder string, content []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	o := atomicfile.Options{Mode: mode, Durable: true, Owner: like, Pattern: tempPrefix + "*" + tempSuffix}
	name, err = atomicfile.Temp(filepath.Join(folder, "x"), content, o)
	return name, withRemedy(err)
}

// withRemedy says what to do where no file can be made in a folder.
func withRemedy(err error) error {
	if made := (*os.PathError)(nil); errors.As(err, &made) && made.Op == "open" && (errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) {
		err = fmt.Errorf("%w (mount the folder writable; where SELinux is enforced, run this container as spc_t: the manifests in install/base do both)", err)
	}
	return err
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
