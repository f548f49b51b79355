// Package image writes container images out of files that are at hand, as the archive that `docker save` makes and `ctr images
// import` reads: no registry is queried, no container engine is needed.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
)

// Image is what goes into one: programs, that mostly need no base.
type Image struct {
	Name       string            // with its tag, such as "neardns.test/pod:1"
	Base       string            // archive (tar) of the files that Files and Contents are put over; "": none
	Files      map[string]string // path in the image, without a leading slash → file to read; all are executable
	Contents   map[string][]byte // the same, with what is in them
	Env        []string          // NAME=value
	Entrypoint []string
	Cmd        []string
}

// Write writes the image's archive. The same files make the same bytes.
func (i Image) Write(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	type file struct {
		name    string
		content []byte
	}
	layers := []file{{"layer.tar", layer}}
	if i.Base != "" {
		base, err := os.ReadFile(i.Base)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
		layers = []file{{"base.tar", base}, {"layer.tar", layer}}
	}
	var names, digests []string
	for _, l := range layers {
		names, digests = append(names, l.name), append(digests, "sha256:"+digest(l.content))
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": i.Env, "Entrypoint": i.Entrypoint, "Cmd": i.Cmd},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	name := digest(config) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": name, "RepoTags": []string{i.Name}, "Layers": names}})
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	archive := tar.NewWriter(w)
	for _, f := range append(layers, file{name, config}, file{"manifest.json", manifest}) {
		if err := add(archive, f.name, f.content, 0o644); err != nil {
			return fmt.Errorf("image %s: %w", i.Name, err)
		}
	}
	return archive.Close()
}

// layer is the archive of the image's files and their folders.
func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{".": true}
	names := slices.AppendSeq(slices.Collect(maps.Keys(i.Files)), maps.Keys(i.Contents))
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		return nil, errors.New("a file is there twice")
	}
	for _, name := range names {
		var folders []string
		for dir := path.Dir(name); !made[dir]; dir = path.Dir(dir) {
			made[dir] = true
			folders = append(folders, dir)
		}
		for _, dir := range slices.Backward(folders) {
			if err := w.WriteHeader(&tar.Header{Name: dir + "/", Mode: 0o755, Typeflag: tar.TypeDir}); err != nil {
				return nil, err
			}
		}
		content, given := i.Contents[name]
		if !given {
			var err error
			if content, err = os.ReadFile(i.Files[name]); err != nil {
				return nil, err
			}
		}
		if err := add(w, name, content, 0o755); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func add(w *tar.Writer, name string, content []byte, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
