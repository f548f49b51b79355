// Package sandbox finds the resolv.conf that a container runtime has made for a pod, and changes it in place.
//
// Containers of the pod have this very file bind-mounted, so it keeps its inode, and with it owner, mode, label and open
// descriptors; a rename would reach no container. It never creates, removes or truncates a file to nothing, and follows no link in the
// file's own name.
//
// Failure policy: a change that cannot be written completely is undone, and is an error.
package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// id is the placeholder for the sandbox's id in a pattern.
const id = "{id}"

// maxSize bounds what is read. A full search list has 2 KiB; more was not written by a runtime.
const maxSize = 64 << 10

// Patterns returns where runtimes keep the file with their default folders: containerd, the one of k3s, the one of RKE2,
// and CRI-O. The caller may change the slice.
func Patterns() []string {
	return []string{
		"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/var/lib/rancher/k3s/agent/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/var/lib/rancher/rke2/agent/containerd/io.containerd.grpc.v1.cri/sandboxes/{id}/resolv.conf",
		"/run/containers/storage/overlay-containers/{id}/userdata/resolv.conf",
	}
}

// CheckPattern checks that a pattern is an absolute path with the id as one of its folders.
func CheckPattern(p string) error {
	folders := strings.Count(filepath.Dir(p)+"/", "/"+id+"/")
	if !filepath.IsAbs(p) || folders != 1 || strings.Count(p, id) != 1 || filepath.Clean(p) != p || strings.ContainsRune(p, 0) {
		return fmt.Errorf("%q is not a path from the root with {id} as one of its folders: write it like %s", p, Patterns()[0])
	}
	return nil
}

// File is a sandbox's resolv.conf as it was read.
type File struct {
	Path string
	Text []byte
}

// Find reads the first file that one of the patterns leads to for a sandbox. It is an error that wraps fs.ErrNotExist where none
// does. The id must be one that podfile.CheckKey accepts, so that it cannot lead elsewhere.
func Find(patterns []string, sandboxID string) (File, error) {
	for _, p := range patterns {
		f, err := Read(strings.Replace(p, id, sandboxID, 1))
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return f, err
		}
	}
	return File{}, fmt.Errorf("resolv.conf of sandbox %.12s: %w", sandboxID, fs.ErrNotExist)
}

// Read reads the file at a path.
func Read(path string) (File, error) {
	f, err := atomicfile.Open(path, os.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	text, err := read(f)
	return File{path, text}, err
}

// Write replaces the file's text, if it is still the one that was read. The file is never empty meanwhile: it grows first and is cut
// last, and a failure puts the old contents back.
func (f File) Write(text []byte) error {
	file, err := atomicfile.Open(f.Path, os.O_RDWR|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer file.Close()
	now, err := read(file)
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

func read(f *os.File) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if len(text) > maxSize {
		return nil, fmt.Errorf("%s has more than %d bytes: no runtime wrote it", f.Name(), maxSize)
	}
	return text, nil
}
