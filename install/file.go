package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// A temporary file is hidden and ends in .tmp, because a runtime loads every .conf, .conflist and .json in its folder as a network, and
// lists the programs in its binary folder. The random part keeps two installers from sharing a file.
const (
	tempPrefix = ".neardns-install-"
	tempSuffix = ".tmp"
)

// writeTemp writes a file under a temporary name in folder. When it returns, the file is synced to the disk with its final mode, and with
// the owner of like if that is not nil.
func writeTemp(folder string, content []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	o := atomicfile.Options{Mode: mode, Durable: true, Owner: like, Pattern: tempPrefix + "*" + tempSuffix}
	name, err = atomicfile.Temp(filepath.Join(folder, "x"), content, o)
	return name, withRemedy(err)
}

// withRemedy adds what to do if no file can be made in a folder.
func withRemedy(err error) error {
	denied := errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)
	if made := (*os.PathError)(nil); denied && errors.As(err, &made) && made.Op == "open" {
		err = fmt.Errorf("%w (mount the folder writable; if SELinux is enforced, run this container as spc_t: the manifests in install/base "+
			"do both)", err)
	}
	return err
}

// rename gives a finished file its name, and returns once a power cut can no longer undo that. It must stay within one folder, because
// runtimes do not notice a file that is moved in from another.
func rename(from, to string) error { return atomicfile.Rename(from, to, true) }

// remove removes a file, and returns once a power cut can no longer undo that.
func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return atomicfile.SyncFolder(filepath.Dir(file))
}
