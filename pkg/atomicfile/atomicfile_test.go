package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	testutil.Must(t, err)
	var out []string
	for _, e := range all {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// A write sets contents and mode and leaves no temporary file; a failed one leaves the old file.
func TestWrite(t *testing.T) {
	for name, o := range map[string]Options{
		"one name":       {Mode: 0o640, Folder: true},
		"a pattern":      {Mode: 0o640, Folder: true, Pattern: ".write-*"},
		"another's name": {Mode: 0o640, Folder: true, Pattern: ".half", Durable: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			path := filepath.Join(dir, "f")
			err := Write(path, nil, Options{Pattern: o.Pattern})
			if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), " "+path+": ") {
				t.Errorf("without a folder: %v", err)
			}
			for _, text := range []string{"first", "second, which is longer", ""} {
				testutil.Must(t, Write(path, []byte(text), o))
				got, err := os.ReadFile(path)
				st, statErr := os.Stat(path)
				if err != nil || statErr != nil || string(got) != text || st.Mode() != 0o640 {
					t.Errorf("%q, %v, %v, want %q", got, err, st.Mode(), text)
				}
			}
			failed := errors.New("no more")
			err = Stream(path, o, func(w io.Writer) error {
				_, _ = w.Write([]byte("half"))
				return failed
			})
			got, readErr := os.ReadFile(path)
			if !errors.Is(err, failed) || readErr != nil || len(got) > 0 || names(t, dir) != "f" {
				t.Errorf("%v, %q, %v; in the folder: %s", err, got, readErr, names(t, dir))
			}
		})
	}
}

// A file that a crash left under the temporary name is removed, not opened, even if it is a link.
func TestWriteOverLeftovers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	testutil.Must(t, os.Symlink("/dev/full", path+".new"))
	if err := Write(path, []byte("x"), Options{Mode: 0o600}); err != nil || names(t, dir) != "f" {
		t.Errorf("%v: %s", err, names(t, dir))
	}
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		t.Errorf("%v, %v", st, err)
	}
}

func TestTemp(t *testing.T) {
	dir := t.TempDir()
	like, err := os.Stat(dir)
	testutil.Must(t, err)
	name, err := Temp(filepath.Join(dir, "f"), []byte("x"), Options{Mode: 0o600, Owner: like, Pattern: ".a-*.tmp"})
	if err != nil || !strings.HasPrefix(filepath.Base(name), ".a-") || !strings.HasSuffix(name, ".tmp") {
		t.Fatalf("%s, %v", name, err)
	}
	if err := Sweep(dir, ".a-", time.Hour); err != nil || names(t, dir) == "" {
		t.Errorf("a young one is swept: %v", err)
	}
	if err := Sweep(dir, ".a-", 0); err != nil || names(t, dir) != "" {
		t.Errorf("an old one stays: %v", err)
	}
	testutil.Check(t, Sweep(filepath.Join(dir, "none"), ".a-", 0))
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	testutil.Must(t, os.WriteFile(path, []byte("12345"), 0o600))
	if got, err := Read(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Read(path, 4); err == nil || !strings.Contains(err.Error(), "larger than 4 bytes") {
		t.Error(err)
	}
	if _, err := Read(filepath.Dir(path), 4); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Error(err)
	}
}

func TestReadersNeverSeeHalfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	texts := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<16)}
	testutil.Must(t, Write(path, []byte(texts[0]), Options{Mode: 0o600, Pattern: "f.*"}))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				testutil.Check(t, Write(path, []byte(texts[i%2]), Options{Mode: 0o600, Pattern: "f.*"}))
			}
		})
		wg.Go(func() {
			for range 100 {
				if text, err := Read(path, 1<<17); err != nil || !slices.Contains(texts, string(text)) {
					t.Errorf("%d bytes, %v", len(text), err)
				}
			}
		})
	}
	wg.Wait()
}
