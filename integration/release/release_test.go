package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestVersion(t *testing.T) {
	for text, good := range map[string]bool{
		"v0.1.0": true, "v1.20.3": true, "v0.2.0-rc.1": true,
		"": false, "0.1.0": false, "v0.1": false, "v01.0.0": false, "v1.0.0+dirty": false, "v1.0.0\n": false, "latest": false, "v1.0.0-": false,
	} {
		testutil.Equal(t, text, good, version.MatchString(text))
	}
}

// repository is a repository of one commit, in which the test runs.
func repository(t *testing.T) (git func(args ...string) string) {
	t.Helper()
	t.Chdir(t.TempDir())
	git = func(args ...string) string {
		t.Helper()
		args = slices.Concat([]string{"-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"}, args)
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	testutil.Must(t, os.WriteFile("a", []byte("a\n"), 0o644))
	git("add", "a")
	git("commit", "-q", "-m", "a")
	return git
}

// The clone is of HEAD and has the tag, the repository itself does not get it.
func TestClone(t *testing.T) {
	git := repository(t)
	r := release{version: "v0.1.0", work: t.TempDir()}
	testutil.Must(t, r.clone(t.Context()))
	if tag, err := command(t.Context(), r.src, nil, "git", "describe", "--exact-match", "--tags"); err != nil || tag != "v0.1.0" {
		t.Errorf("tag %q, error %v", tag, err)
	}
	testutil.Equal(t, "tags of the repository", "", git("tag"))
	if want := git("log", "-1", "--format=%ct"); strconv.FormatInt(r.clock, 10) != want {
		t.Errorf("the time is %d, the commit's is %s", r.clock, want)
	}
}

func TestRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, git func(...string) string)
		want   string
	}{
		"change": {func(t *testing.T, _ func(...string) string) {
			testutil.Must(t, os.WriteFile("a", []byte("b\n"), 0o644))
		}, "not committed"},
		"new file": {func(t *testing.T, _ func(...string) string) {
			testutil.Must(t, os.WriteFile("b", nil, 0o644))
		}, "not committed"},
		"tag elsewhere": {func(_ *testing.T, git func(...string) string) {
			git("tag", "v0.1.0")
			git("commit", "-q", "--allow-empty", "-m", "b")
		}, "tag v0.1.0 is on commit"},
		"folder": {func(t *testing.T, git func(...string) string) {
			testutil.Must(t, os.WriteFile(".gitignore", []byte("/dist/\n"), 0o644))
			testutil.Must(t, os.Mkdir("dist", 0o755))
		}, "is there already"},
	} {
		t.Run(name, func(t *testing.T) {
			git := repository(t)
			test.change(t, git)
			before := listed(t, ".")
			r := release{version: "v0.1.0", out: "dist", log: slog.New(slog.DiscardHandler)}
			err := r.run(t.Context(), nil, "", false)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not say %q", err, test.want)
			}
			testutil.Equal(t, "it changed the folder", before, listed(t, "."))
		})
	}
}

func listed(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testutil.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// The same files make the same bytes, whatever their owner and time; modes are of two kinds.
func TestPack(t *testing.T) {
	r := release{clock: 1_700_000_000}
	var archives [2][]byte
	for i := range archives {
		dir := t.TempDir()
		files := map[string]string{}
		for name, mode := range map[string]os.FileMode{"program": 0o700 + os.FileMode(i), "text": 0o600 + 4*os.FileMode(i)} {
			files["x/"+name] = filepath.Join(dir, name)
			testutil.Must(t, os.WriteFile(files["x/"+name], []byte(name), mode))
			testutil.Must(t, os.Chtimes(files["x/"+name], time.Time{}, time.Unix(int64(i), 0)))
		}
		path := filepath.Join(dir, "out.tar.gz")
		testutil.Must(t, r.pack(path, files))
		var err error
		if archives[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same files differ")
	}
	z, err := gzip.NewReader(bytes.NewReader(archives[0]))
	testutil.Must(t, err)
	var got []string
	for a := tar.NewReader(z); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testutil.Must(t, err)
		got = append(got, h.Name+" "+h.FileInfo().Mode().String())
	}
	testutil.Equal(t, "archive", []string{"x/program -rwxr-xr-x", "x/text -rw-r--r--"}, got)
}

// sha256sum itself reads the list.
func TestSums(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	testutil.Must(t, sums(dir))
	out, err := command(t.Context(), dir, nil, "sha256sum", "--strict", "-c", "SHA256SUMS")
	if err != nil || out != "a: OK\nb: OK" {
		t.Errorf("%s %v", out, err)
	}
}

// No manifest of the repository keeps the tag dev.
func TestTagged(t *testing.T) {
	tags := 0
	tag := func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" || strings.Contains(path, "/chart/files/") || strings.Contains(path, "/chart/values") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out := tagged(entry.Name(), text, "v1.2.3")
		tags += bytes.Count(out, []byte("v1.2.3"))
		for line := range strings.Lines(string(out)) {
			if line, _, _ = strings.Cut(line, "#"); strings.Contains(line, "newTag: dev") || strings.Contains(line, ":dev") || strings.HasPrefix(line, "appVersion: dev") {
				t.Errorf("%s has %s", path, line)
			}
		}
		return nil
	}
	testutil.Must(t, filepath.WalkDir("../../install", tag))
	testutil.Must(t, filepath.WalkDir("../../fleet/install", tag))
	if tags < 10 {
		t.Errorf("%d tags, there should be ten", tags)
	}
}

// The list is, byte for byte, what CycloneDX's own library writes of the same: each module once, and each reference names a component.
func TestBOM(t *testing.T) {
	b := bom("v0.1.0", 1_700_000_000, []program{
		{"neardns", "go1.26.8", []string{"example.org/a@v1.0.0", "example.org/b@v1.0.0"}},
		{"neardns-agent", "go1.26.8", []string{"example.org/a@v1.0.0"}},
	}, []debian{{"iptables", "1:1.8.9-2", "amd64"}, {"iptables", "1:1.8.9-2", "arm64"}})
	want := testutil.ReadFile(t, "testdata/bom.json")
	var got bytes.Buffer
	testutil.Must(t, b.write(&got))
	testutil.Equal(t, "the library's list", want, got.String())
}

func TestInstalled(t *testing.T) {
	got := installed([]byte("Package: iptables\nStatus: install ok installed\nVersion: 1.8.9-2\nDescription: x\n Version: 9\n\nPackage: libc6\nVersion: 2.36-9\n"))
	if len(got) != 2 || got["iptables"] != "1.8.9-2" || got["libc6"] != "2.36-9" {
		t.Errorf("%v", got)
	}
}

// The line that the list of packages is read from is the image's own.
func TestCopiedPackages(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile.agent")
	testutil.Must(t, err)
	if line := copied.FindSubmatch(text); line == nil || !slices.Contains(strings.Fields(string(line[1])), "iptables") {
		t.Errorf("%s", line)
	}
}

func TestLicenceFile(t *testing.T) {
	for name, want := range map[string]bool{
		"LICENSE": true, "LICENSE.txt": true, "License.md": true, "LICENCE": true, "COPYING": true, "NOTICE": true, "LICENSE-APACHE-2.0.txt": true,
		"README.md": false, "license_test.go": false, "licenses": false,
	} {
		testutil.Equal(t, name, want, licenceFile.MatchString(name))
	}
}

func TestWriteKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	testutil.Must(t, os.WriteFile(path, []byte("old"), 0o644))
	if err := write(path, func(io.Writer) error { return nil }); err == nil {
		t.Error("a file was overwritten")
	}
}
