// Package sandbox finds the resolv.conf that a container runtime made for a pod's sandbox, and changes it in place.
//
// The pod's containers have this file bind-mounted, so a new file under the same name would reach none of them. A change in place keeps
// the inode, and with it owner, mode, label and open descriptors. The package never creates or removes the file, and does not follow a
// symbolic link in its place.
//
// On failure it returns an error. If a change cannot be written completely, it tries to write the old contents back.
package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// id is the placeholder for the sandbox's ID in a path pattern.
const id = "{id}"

// maxSize is the maximum size of a resolv.conf, in bytes. A full search list has 2 KiB, so no runtime writes a larger file.
const maxSize = 64 << 10

// Patterns returns the path patterns of a sandbox's resolv.conf in the default folders of containerd, of the containerd in k3s and in RKE2,
// and of CRI-O. The caller may change the slice.
func Patterns() []string {
	return []string{
		"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/var/lib/rancher/k3s/agent/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/var/lib/rancher/rke2/agent/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/run/containers/storage/overlay-containers/{id}/userdata/resolv.conf",
	}
}

// CheckPattern returns an error unless a pattern is an absolute path without redundant parts that has {id} as exactly one of its folders.
func CheckPattern(p string) error {
	folders := strings.Count(filepath.Dir(p)+"/", "/"+id+"/")
	if !filepath.IsAbs(p) || folders != 1 || strings.Count(p, id) != 1 || filepath.Clean(p) != p || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%q is not a path from the root with {id} as one of its folders: write it like %s", p, Patterns()[0])
	}
	return nil
}

// File is a sandbox's resolv.conf with the contents that were read.
type File struct {
	Path string
	Text []byte
}

// Find reads a sandbox's resolv.conf at the first of the patterns where one exists. If there is none, the error wraps fs.ErrNotExist. The
// ID must be one that podfile.CheckKey accepts, so that it cannot lead to another folder.
func Find(patterns []string, sandboxID string) (File, error) {
	for _, p := range patterns {
		f, err := Read(strings.Replace(p, id, sandboxID, 1))
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return f, err
		}
	}
	return File{}, fmt.Errorf("resolv.conf of sandbox %.12s: %w", sandboxID, fs.ErrNotExist)
}

// Read reads the resolv.conf at path. It returns an error if path is a symbolic link or another file that is not regular.
func Read(path string) (File, error) {
	f, err := atomicfile.Open(path, os.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	text, err := atomicfile.ReadAll(f, maxSize)
	return File{path, text}, err
}

// Write replaces the file's contents by text. If the file has changed since it was read, Write leaves it as it is, and returns an error
// unless the file has text already. The file is never empty meanwhile, because Write overwrites it from the start and then cuts it to the
// new length. If this fails, Write tries to write the old contents back.
func (f File) Write(text []byte) error {
	file, err := atomicfile.Open(f.Path, os.O_RDWR|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer file.Close()
	now, err := atomicfile.ReadAll(file, maxSize)
	switch {
	case err != nil:
		return err
	case bytes.Equal(now, text):
		return nil
	case !bytes.Equal(now, f.Text):
		return fmt.Errorf("%s has changed since it was read: it is left as it is", f.Path)
	}
	if err := fill(file, text); err != nil {
		return errors.Join(err, fill(file, now))
	}
	return nil
}

func fill(file *os.File, text []byte) error {
	if _, err := file.WriteAt(text, 0); err != nil {
		return err
	}
	return file.Truncate(int64(len(text)))
}
