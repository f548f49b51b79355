package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// Temporary files start with a dot and end in .tmp, so that a runtime takes them neither for a network configuration (.conf, .conflist,
// .json) nor for a plugin. A random part between the two keeps two installers from using the same file.
const (
	tempPrefix = ".neardns-install-"
	tempSuffix = ".tmp"
)

// writeTemp writes a file under a temporary name in folder and syncs it to disk with its final mode. If like is not nil, the file gets
// the owner of like.
func writeTemp(folder string, content []byte, mode os.FileMode, like os.FileInfo) (name string, err error) {
	o := atomicfile.Options{Mode: mode, Durable: true, Owner: like, Pattern: tempPrefix + "*" + tempSuffix}
	name, err = atomicfile.Temp(filepath.Join(folder, tempPrefix+tempSuffix), content, o)
	return name, withRemedy(err)
}

// withRemedy adds a remedy to err if a file could not be created because the folder is read-only or access is denied.
func withRemedy(err error) error {
	denied := errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)
	if made := (*os.PathError)(nil); denied && errors.As(err, &made) && made.Op == "open" {
		err = fmt.Errorf("%w (mount the folder writable; if SELinux is enforced, run this container as spc_t: the manifests in install/base "+
			"do both)", err)
	}
	return err
}

// rename renames a finished file durably: after a return without error, a power cut does not undo it. Both names must be in the same
// folder, because containerd does not notice a file that is moved in from another one.
func rename(from, to string) error { return atomicfile.Rename(from, to, true) }
