package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// pack writes files, by their name in the archive, as a compressed archive: sorted, root's, of the commit's time.
func (r *release) pack(path string, files map[string]string) error {
	return write(path, func(w io.Writer) error {
		z := gzip.NewWriter(w)
		if err := r.tar(z, files); err != nil {
			return err
		}
		return z.Close()
	})
}

// tar writes the same archive uncompressed.
func (r *release) tar(w io.Writer, files map[string]string) error {
	archive := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		info, err := os.Stat(files[name])
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		header := &tar.Header{Name: name, Mode: mode, Size: info.Size(), Typeflag: tar.TypeReg, ModTime: time.Unix(r.clock, 0), Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		f, err := os.Open(files[name])
		if err != nil {
			return err
		}
		_, err = io.Copy(archive, f)
		if err := f.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	return archive.Close()
}

// write makes a file of what fill writes.
func write(path string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	err = fill(f)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// sums writes SHA256SUMS of all files in a folder, in the form that `sha256sum -c` reads.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		_ = f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum.Sum(nil)), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(list.String()), 0o644)
}

// copyTree copies a folder; os.Rename does not where the two are on different file systems.
func copyTree(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }
