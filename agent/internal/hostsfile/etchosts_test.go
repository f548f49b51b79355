package hostsfile

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/hostsfile"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	base = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\tnode-1\n"
	// runner as the first argument makes the test binary run one of helpers.
	runner = "run-helper"
)

// helpers are run by this program itself, as another process.
var helpers = map[string]func(args []string) error{"mounted": mounted, "writer": writer, "copier": copier}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == runner {
		if err := helpers[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// helper returns the command that runs one of helpers.
func helper(t *testing.T, words ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	testutil.Must(t, err)
	cmd := exec.CommandContext(t.Context(), self, append([]string{runner}, words...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func lines(texts ...string) (out []hostsfile.Entry) {
	for _, s := range texts {
		out = append(out, hostsfile.Entry{Addr: netip.MustParseAddr(s), Names: Names("shop/registry", "cluster.local")})
	}
	return out
}

// newRoot makes a root with a hosts file.
func newRoot(t *testing.T, text string) (root, path string) {
	t.Helper()
	root = t.TempDir()
	path = filepath.Join(root, name)
	testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	return root, path
}

// wantApplied writes lines to the file, or wants an error that holds a text.
func wantApplied(t *testing.T, f *file, text string, entries []hostsfile.Entry) {
	t.Helper()
	if _, _, err := f.apply(t.Context(), entries); (err == nil) != (text == "") || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

// wantRemoved wants Remove to find lines or none, or an error that holds a text.
func wantRemoved(t *testing.T, root string, want bool, text string) {
	t.Helper()
	if had, err := Remove(t.Context(), root); had != want || (err == nil) != (text == "") || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("removed %v, error %v; want %v, %q", had, err, want, text)
	}
}

func with(text string, entries []hostsfile.Entry) string {
	out, _ := hostsfile.Apply([]byte(text), entries)
	return string(out)
}

// The file gets its lines, keeps mode, owner and attributes, is not written without need, and is itself again at the end.
func TestFile(t *testing.T) {
	compat.Say(t, "hosts", "mode, owner, attributes", "kept, or the file stays as it is")
	compat.Say(t, "hosts", "uninstalled", "the file is what it was, to the byte")
	for _, text := range []string{base, strings.TrimSuffix(base, "\n"), strings.ReplaceAll(base, "\n", "\r\n"), "a\x00b"} {
		root, path := newRoot(t, text)
		testutil.Must(t, os.Chmod(path, 0o640))
		label := "system_u:object_r:net_conf_t:s0\x00"
		labelled := unix.Lsetxattr(path, "security.selinux", []byte(label), 0) == nil
		_ = os.Chown(path, 1001, 1002) // where this is root
		before, err := os.Stat(path)
		testutil.Must(t, err)
		f := &file{root: root}
		for _, entries := range [][]hostsfile.Entry{lines("10.96.0.5"), lines("10.96.0.6", "fd00::6"), lines("10.96.0.6", "fd00::6")} {
			wantApplied(t, f, "", entries)
			testutil.WantFile(t, path, with(text, entries))
		}
		there, err := os.Stat(path)
		testutil.Must(t, err)
		if written, _, err := f.apply(t.Context(), lines("10.96.0.6", "fd00::6")); written || err != nil {
			t.Errorf("nothing to do: written %v, %v", written, err)
		}
		if now, _ := os.Stat(path); !os.SameFile(there, now) || now.ModTime() != there.ModTime() {
			t.Error("it was written without need")
		}
		wantRemoved(t, root, true, "")
		wantRemoved(t, root, false, "")
		testutil.WantFile(t, path, text)
		now, err := os.Stat(path)
		if err != nil || now.Mode() != before.Mode() || owner(now) != owner(before) {
			t.Errorf("%v: mode %v, owner %v", err, now.Mode(), owner(now))
		}
		value := make([]byte, 100)
		if n, err := unix.Lgetxattr(path, "security.selinux", value); labelled && (err != nil || string(value[:n]) != label) {
			t.Errorf("the label is lost: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "etc", ".*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func owner(info os.FileInfo) [2]uint32 {
	st := info.Sys().(*syscall.Stat_t)
	return [2]uint32{st.Uid, st.Gid}
}

// A link is followed as the host would, and refused where it leads out of what is mounted.
func TestFileBehindLinks(t *testing.T) {
	for target, inside := range map[string]bool{"static/hosts": true, "/etc/static/hosts": true, "../etc/static/hosts": true, "/nix/store/hosts": false, "none": false} {
		root, path := newRoot(t, base)
		real := filepath.Join(root, "etc/static/hosts")
		testutil.Must(t, errors.Join(os.Mkdir(filepath.Dir(real), 0o755), os.Rename(path, real), os.Symlink(target, path)))
		f := &file{root: root}
		_, _, err := f.apply(t.Context(), lines("10.96.0.5"))
		if inside != (err == nil) || err != nil && !strings.Contains(err.Error(), "leads out") {
			t.Errorf("to %s: %v", target, err)
		}
		if inside {
			testutil.WantFile(t, real, with(base, lines("10.96.0.5")))
		} else {
			testutil.WantFile(t, real, base)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("to %s: the link is gone", target)
		}
	}
}

// A hard link stays one: the file is refused, since its other name would keep the old text.
func TestFileWithTwoNames(t *testing.T) {
	root, path := newRoot(t, base)
	f := &file{root: root}
	wantApplied(t, f, "", lines("10.96.0.5"))
	other := filepath.Join(root, "other")
	testutil.Must(t, os.Link(path, other))
	wantApplied(t, f, "hard link", lines("10.96.0.6"))
	testutil.WantFile(t, path, with(base, lines("10.96.0.5")))
	testutil.WantFile(t, other, with(base, lines("10.96.0.5")))
	wantRemoved(t, root, false, "by hand")
	testutil.Must(t, os.Remove(other))
	wantRemoved(t, root, true, "")
	testutil.WantFile(t, path, base)
}

// A program that has the file open, and appends long after it opened it, loses nothing: the lines are written when it has closed the file.
func TestSlowAppender(t *testing.T) {
	root, path := newRoot(t, base)
	f := &file{root: root}
	tee, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	testutil.Must(t, err)
	defer tee.Close()
	if _, _, err := f.apply(t.Context(), lines("10.96.0.5")); !errors.Is(err, atomicfile.ErrOpen) {
		t.Fatalf("written: %v", err)
	}
	testutil.WantFile(t, path, base)
	_, err = tee.WriteString("192.0.2.1\tprinter\n")
	testutil.Must(t, errors.Join(err, tee.Close()))
	wantApplied(t, f, "", lines("10.96.0.6"))
	testutil.WantFile(t, path, with(base+"192.0.2.1\tprinter\n", lines("10.96.0.6")))
	if left, _ := filepath.Glob(filepath.Join(root, "etc", ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A file that is not a whole hosts file is not changed.
func TestFileLeftAlone(t *testing.T) {
	for what, c := range map[string]struct{ text, err string }{
		"empty":     {"", "is empty"},
		"too large": {strings.Repeat("#\n", hostsfile.MaxSize/2+1), "larger than"},
		"filled up": {strings.Repeat("#\n", hostsfile.MaxSize/2-10), "more than"},
	} {
		root, path := newRoot(t, c.text)
		wantApplied(t, &file{root: root}, c.err, lines("10.96.0.5"))
		testutil.Equal(t, what, c.text, testutil.ReadFile(t, path))
	}
	// Remove returns an error if it leaves lines of neardns in a file that is too large, and only then.
	for _, bytes := range []int{hostsfile.MaxSize + 1, 1<<20 + 1<<16 - 9} {
		large := strings.Repeat("#", bytes) + "\n"
		root, path := newRoot(t, large)
		wantRemoved(t, root, false, "")
		testutil.Must(t, os.WriteFile(path, []byte(with(large, lines("10.96.0.5"))), 0o644))
		wantRemoved(t, root, false, "larger than")
	}
	root, path := newRoot(t, base)
	testutil.Must(t, errors.Join(os.Remove(path), unix.Mkfifo(path, 0o644)))
	wantApplied(t, &file{root: root}, "not a regular file", nil)
	testutil.Must(t, os.Remove(path))
	if _, _, err := (&file{root: root}).apply(t.Context(), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	wantRemoved(t, root, false, "")
}

// TestFileWhereNothingCanBeWritten has a full disk, a read-only one, an immutable file and a mounted one; each in mounts of its own.
func TestFileWhereNothingCanBeWritten(t *testing.T) {
	testutil.RequireRoot(t)
	for _, how := range []string{"full", "read-only", "immutable", "file"} {
		t.Run(how, func(t *testing.T) {
			root, path := newRoot(t, base)
			cmd := helper(t, "mounted", how, root)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			out, err := cmd.Output()
			testutil.Check(t, err, string(out))
			testutil.WantFile(t, path, base)
		})
	}
}

// mounted tries one case in mounts of this process.
func mounted(args []string) error {
	how, root := args[0], args[1]
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	etc, path := filepath.Join(root, "etc"), filepath.Join(root, name)
	f := &file{root: root}
	want := func(part string) error {
		_, _, err := f.apply(context.Background(), lines("10.96.0.5"))
		if err == nil || !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%s: %w, want %q", how, err, part)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != base {
			return fmt.Errorf("%s: %w, it holds\n%s", how, err, got)
		}
		left, _ := filepath.Glob(filepath.Join(etc, ".neardns*"))
		return testutil.ErrorIf(len(left) > 0, "%s: left behind: %v", how, left)
	}
	small := func(at string) error {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(at, "hosts"), []byte(base), 0o644); err != nil {
			return err
		}
		return nil
	}
	fill := func(at string) {
		_ = os.WriteFile(filepath.Join(at, "filler"), make([]byte, 1<<20), 0o600) // as much as goes
	}
	switch how {
	case "full":
		if err := small(etc); err != nil {
			return err
		}
		fill(etc)
		return want("no space left")
	case "read-only":
		if err := errors.Join(unix.Mount(etc, etc, "", unix.MS_BIND, ""), unix.Mount("", etc, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
			return err
		}
		return want("mount the folder writable")
	case "immutable":
		r, err := os.Open(path)
		if err != nil {
			return err
		}
		defer r.Close()
		const immutable = 0x10 // FS_IMMUTABLE_FL, linux/fs.h
		if err := unix.IoctlSetPointerInt(int(r.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
			fmt.Println("no file can be immutable here:", err)
			return nil
		}
		defer unix.IoctlSetPointerInt(int(r.Fd()), unix.FS_IOC_SETFLAGS, 0) //nolint:errcheck // the test's folder goes next
		return want("operation not permitted")
	}
	// The file alone is mounted, as in a container.
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return want("mount its folder")
}

// A label that cannot be given to a new file is kept: the file stays as it is.
func TestFileKeepsForeignLabels(t *testing.T) {
	compat.Say(t, "hosts", "mode, owner, attributes", "kept, or the file stays as it is")
	root, path := newRoot(t, base)
	if unix.Lsetxattr(path, "security.neardns", []byte("x"), 0) != nil {
		t.Skip("no security attribute can be set here")
	}
	before, err := os.Stat(path)
	testutil.Must(t, err)
	f, free, refused := &file{root: root}, false, error(nil)
	testutil.WithoutCapabilities(t, func() {
		// Linux 6.1 lets every process set one, where BPF is one of its security modules.
		other := filepath.Join(t.TempDir(), "other")
		testutil.Check(t, os.WriteFile(other, nil, 0o600))
		free = unix.Lsetxattr(other, "security.neardns", []byte("x"), 0) == nil
		_, _, refused = f.apply(t.Context(), lines("10.96.0.5"))
	})
	after, err := os.Stat(path)
	testutil.Must(t, err)
	text := with(base, lines("10.96.0.5"))
	if !free {
		text = base
		if !os.SameFile(before, after) || refused == nil || !strings.Contains(refused.Error(), "security.neardns") {
			t.Errorf("the same file %v: %v", os.SameFile(before, after), refused)
		}
	}
	var kept [1]byte
	if n, err := unix.Lgetxattr(path, "security.neardns", kept[:]); err != nil || string(kept[:n]) != "x" {
		t.Errorf("the attribute is %q: %v", kept, err)
	}
	testutil.WantFile(t, path, text)
}
