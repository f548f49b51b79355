package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestPatterns(t *testing.T) {
	for _, p := range Patterns() {
		testutil.Check(t, CheckPattern(p))
	}
	for _, p := range []string{"", "resolv.conf", "/a/resolv.conf", "/a/{id}", "a/{id}/resolv.conf", "/a/{id}/{id}/r", "/a/x{id}/r", "/a/../{id}/r", "/a/{id}/r/", "/a/{id}/\x00"} {
		if CheckPattern(p) == nil {
			t.Errorf("%q is taken", p)
		}
	}
}

// pattern returns a pattern below a folder of the test, and the path that it has for the sandbox abc, whose folder it makes.
func pattern(t *testing.T, name string) (pattern, path string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	testutil.Must(t, os.MkdirAll(filepath.Join(dir, "abc"), 0o755))
	return filepath.Join(dir, "{id}", "resolv.conf"), filepath.Join(dir, "abc", "resolv.conf")
}

func TestFindAndWrite(t *testing.T) {
	testutil.RequireRoot(t) // the file is another program's
	none, _ := pattern(t, "none")
	here, path := pattern(t, "here")
	patterns := []string{none, here}
	if _, err := Find(patterns, "abc"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no file: %v", err)
	}
	testutil.Must(t, os.WriteFile(path, []byte("nameserver 10.96.0.10\n"), 0o640))
	testutil.Must(t, os.Chown(path, 7, 8))
	label := unix.Setxattr(path, "user.label", []byte("s0:c1"), 0) == nil // not every file system has it
	mounted, err := os.Open(path)                                         // as a container has it
	testutil.Must(t, err)
	defer mounted.Close()
	before := stat(t, path)

	f, err := Find(patterns, "abc")
	if err != nil || f.Path != path {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, text := range []string{"nameserver 10.96.0.10\noptions ndots:1\n", "nameserver ::1\n", ""} {
		testutil.Must(t, f.Write([]byte(text)))
		got := make([]byte, 100)
		n, _ := mounted.ReadAt(got, 0)
		if string(got[:n]) != text {
			t.Errorf("a container reads %q, want %q", got[:n], text)
		}
		f.Text = []byte(text)
	}
	after := stat(t, path)
	if before.Ino != after.Ino || before.Uid != after.Uid || before.Gid != after.Gid || before.Mode != after.Mode {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if value := make([]byte, 20); label {
		if n, err := unix.Getxattr(path, "user.label", value); err != nil || string(value[:n]) != "s0:c1" {
			t.Errorf("label %q, %v", value[:n], err)
		}
	}
}

func stat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	testutil.Must(t, unix.Stat(path, &st))
	return st
}

func TestWriteLeavesWhatItDoesNotKnow(t *testing.T) {
	_, path := pattern(t, "x")
	testutil.Must(t, os.WriteFile(path, []byte("old"), 0o644))
	f, err := Read(path)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(path, []byte("new"), 0o644))
	if err := f.Write([]byte("ours")); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("wrote over it: %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "new" {
		t.Errorf("it says %q", got)
	}
	// Writing again changes nothing.
	testutil.Check(t, f.Write([]byte("new")))
}

// If the file system is full, the file keeps its contents.
func TestFull(t *testing.T) {
	testutil.RequireRoot(t) // a small file system is mounted
	dir := t.TempDir()
	testutil.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"))
	t.Cleanup(func() {
		testutil.Check(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	path := filepath.Join(dir, "resolv.conf")
	for name, size := range map[string]int{"other": 4096, "resolv.conf": 100} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat("x", size)), 0o644))
	}
	f, err := Read(path)
	testutil.Must(t, err)
	if err := f.Write([]byte(strings.Repeat("y", 5000))); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("written: %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != string(f.Text) {
		t.Errorf("%d bytes are left, beginning with %.20q", len(got), got)
	}
}

func TestNotAFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a folder": func(p string) error { return os.Mkdir(p, 0o755) },
		"a pipe":   func(p string) error { return unix.Mkfifo(p, 0o644) },
		"a link":   func(p string) error { return os.Symlink("/etc/hosts", p) },
		"huge":     func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("x", maxSize+1)), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			pattern, path := pattern(t, "x")
			testutil.Must(t, make(path))
			if _, err := Find([]string{pattern}, "abc"); err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("read: %v", err)
			}
			if err := (File{Path: path}).Write([]byte("x")); err == nil {
				t.Error("written")
			}
		})
	}
}
