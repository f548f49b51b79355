package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

// read takes an archive apart into its files; a folder's content is its mode.
func read(t *testing.T, archive []byte) (names []string, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, files
		}
		testutil.Must(t, err)
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func TestWrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	testutil.Must(t, os.WriteFile(program, []byte("ELF"), 0o600))
	i := Image{Name: "x.test/y:1", Files: map[string]string{"bin/b": program, "bin/a": program, "z": program}, Env: []string{"PATH=/bin"}, Entrypoint: []string{"/bin/a"}, Cmd: []string{"run"}}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		testutil.Must(t, i.Write(out))
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same files make different archives")
	}
	_, files := read(t, first.Bytes())
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("%v: %s", err, files["manifest.json"])
	}
	m := manifest[0]
	if diff := cmp.Diff([]string{"x.test/y:1"}, m.RepoTags); diff != "" || m.Config != digest(files[m.Config])+".json" {
		t.Errorf("manifest %+v: %s", m, diff)
	}
	var config struct {
		Config struct{ Env, Entrypoint, Cmd []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	testutil.Must(t, json.Unmarshal(files[m.Config], &config))
	if diff := cmp.Diff([]string{"sha256:" + digest(files["layer.tar"])}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"PATH=/bin", "/bin/a", "run"}, slices.Concat(config.Config.Env, config.Config.Entrypoint, config.Config.Cmd)); diff != "" {
		t.Error(diff)
	}
	names, content := read(t, files["layer.tar"])
	if diff := cmp.Diff([]string{"bin/", "bin/a", "bin/b", "z"}, names); diff != "" || string(content["bin/b"]) != "ELF" {
		t.Errorf("layer: %s", diff)
	}
}

// What is put over a base is a layer of its own, so that images of one base share it.
func TestWriteOverBase(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base.tar")
	testutil.Must(t, os.WriteFile(base, []byte("a tar"), 0o600))
	var out bytes.Buffer
	testutil.Must(t, (Image{Name: "x.test/y:1", Base: base, Contents: map[string][]byte{"z": nil}}).Write(&out))
	_, files := read(t, out.Bytes())
	var manifest []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("%v: %s", err, files["manifest.json"])
	}
	if diff := cmp.Diff([]string{"base.tar", "layer.tar"}, manifest[0].Layers); diff != "" || string(files["base.tar"]) != "a tar" {
		t.Errorf("%s: %s", diff, files["base.tar"])
	}
	if config := string(files[manifest[0].Config]); !strings.Contains(config, `["sha256:`+digest([]byte("a tar"))+`","sha256:`+digest(files["layer.tar"])+`"]`) {
		t.Errorf("the configuration does not name both layers in their order: %s", config)
	}
	if err := (Image{Name: "x.test/y:1", Base: base + ".none"}).Write(io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the base is not there", err)
	}
}

func TestWriteWithoutFile(t *testing.T) {
	err := Image{Name: "x.test/y:1", Files: map[string]string{"a": filepath.Join(t.TempDir(), "none")}}.Write(io.Discard)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the file is not there", err)
	}
}
