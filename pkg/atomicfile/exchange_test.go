package atomicfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// If an exchanger is killed while the owner's text is in a temporary file, Sweep of the next run restores that text.
func TestSweepGivesTheOwnersTextBack(t *testing.T) {
	const (
		before = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}`
		edited = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","mtu":1400}]}`
		ours   = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{"type":"neardns","redirects":["10.96.0.10"]}]}`
		list   = "10-a.conflist"
	)
	x := Exchanger{Prefix: ".x-"}
	temp := x.placedName(list, []byte(ours))
	for _, tc := range []struct {
		name        string
		temp, text  string // the temporary file's name and contents
		list        string // the contents of the list; "" if it is missing
		writtenLast bool   // the owner wrote the list after the temporary file
		want        string
	}{
		{"before the exchange", temp, ours, edited, false, edited},
		{"behind it, the owner had written", temp, edited, ours, false, edited},
		{"behind it, nobody had written", temp, before, ours, false, before},
		{"the owner has written again since", temp, before, edited, true, edited},
		{"the owner has removed the network since", temp, before, "", false, ""},
		{"taken aside", x.asidePrefix() + list + tempSuffix, edited, "", false, edited},
		{"taken aside, and written anew", x.asidePrefix() + list + tempSuffix, before, edited, true, edited},
		{"a program's copy", x.Prefix + "77" + tempSuffix, "x", before, false, before},
		{"a name of another form", x.placedPrefix() + "x" + tempSuffix, "x", before, false, before},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string, at time.Time) {
				file := filepath.Join(dir, name)
				testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
				testutil.Must(t, os.Chtimes(file, at, at))
			}
			now := time.Unix(1_700_000_000, 0)
			write(tc.temp, tc.text, now)
			if tc.list != "" {
				at := now.Add(-time.Second)
				if tc.writtenLast {
					at = now.Add(time.Second)
				}
				write(list, tc.list, at)
			}
			testutil.Must(t, x.Sweep(dir))
			left, _ := filepath.Glob(filepath.Join(dir, ".*"))
			if len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			got, err := os.ReadFile(filepath.Join(dir, list))
			if string(got) != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("the list holds %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}

// A file that still has the contents that were read is replaced and keeps its attributes; any other stays as it is.
func TestExchanger(t *testing.T) {
	x := Exchanger{Prefix: ".x-"}
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	testutil.Must(t, os.WriteFile(file, []byte("old"), 0o640))
	set := setAttributes(t, file)
	info, err := os.Stat(file)
	testutil.Must(t, err)
	o := Options{Mode: 0o640, Owner: info, Attributes: file}
	if err := x.Write(file, []byte("another"), []byte("new"), o); !errors.Is(err, ErrMoved) {
		t.Errorf("over another text: %v", err)
	}
	if got, _ := os.ReadFile(file); string(got) != "old" || names(t, dir) != "f" {
		t.Errorf("%q; in the folder: %s", got, names(t, dir))
	}
	testutil.Must(t, x.Write(file, []byte("old"), []byte("new"), o))
	got, err := os.ReadFile(file)
	st, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(got) != "new" || st.Mode() != info.Mode() || names(t, dir) != "f" {
		t.Errorf("%q, %v, %v; in the folder: %s", got, err, st.Mode(), names(t, dir))
	}
	for name, want := range set {
		value := make([]byte, 100)
		if n, err := unix.Lgetxattr(file, name, value); err != nil || string(value[:n]) != want {
			t.Errorf("%s is %q (%v), want %q", name, value[:max(n, 0)], err, want)
		}
	}
	if err := x.Write(filepath.Join(dir, "none"), nil, []byte("new"), Options{Mode: 0o600}); !errors.Is(err, ErrMoved) || names(t, dir) != "f" {
		t.Errorf("a file that is gone: %v; in the folder: %s", err, names(t, dir))
	}
	if err := x.Remove(file, []byte("old")); !errors.Is(err, ErrMoved) || names(t, dir) != "f" {
		t.Errorf("remove another text: %v; in the folder: %s", err, names(t, dir))
	}
	if err := x.Remove(file, []byte("new")); err != nil || names(t, dir) != "" {
		t.Errorf("remove: %v; in the folder: %s", err, names(t, dir))
	}
}

// However often the owner replaces the file while its text is being restored, its last text is in place at the end.
func TestExchangerAgainstAnOwnerThatGoesOn(t *testing.T) {
	dir := t.TempDir()
	file, temp := filepath.Join(dir, "f"), filepath.Join(dir, "temp")
	testutil.Must(t, os.WriteFile(temp, []byte("new"), 0o600))
	ours, err := os.Stat(temp)
	testutil.Must(t, err)
	// The owner's files are pipes: reading one blocks until the test writes into it by its other name.
	const last = 5
	owners := filepath.Join(t.TempDir(), "owners-")
	texts := make([]os.FileInfo, last+1)
	for i := range texts {
		name := owners + strconv.Itoa(i)
		testutil.Must(t, unix.Mkfifo(name, 0o600))
		texts[i], err = os.Stat(name)
		testutil.Must(t, err)
	}
	place := func(i int) {
		link := filepath.Join(dir, "link")
		testutil.Must(t, os.Link(owners+strconv.Itoa(i), link))
		testutil.Must(t, os.Rename(link, file))
	}
	place(0)
	ended := make(chan error, 1)
	go func() { ended <- replace(temp, file, []byte("before")) }()
	write := func(i int, text string, meanwhile func()) {
		f, err := os.OpenFile(owners+strconv.Itoa(i), os.O_WRONLY, 0) // blocks until replace reads the pipe
		testutil.Must(t, err)
		meanwhile()
		_, err = f.WriteString(text)
		testutil.Must(t, errors.Join(err, f.Close()))
	}
	placed := func(want os.FileInfo) bool {
		got, err := os.Stat(file)
		testutil.Must(t, err)
		return os.SameFile(got, want)
	}
	write(0, "before", func() {})
	for !placed(ours) {
		runtime.Gosched()
	}
	for i := range last {
		write(i, strconv.Itoa(i), func() { place(i + 1) })
	}
	write(last, strconv.Itoa(last), func() {})
	for err = nil; err == nil && !placed(texts[last]); runtime.Gosched() {
		select {
		case err = <-ended:
		default:
		}
	}
	if err == nil {
		write(last-1, strconv.Itoa(last-1), func() {}) // the file that comes out is the one that was put in last
		err = <-ended
	}
	if !errors.Is(err, ErrMoved) || !placed(texts[last]) || names(t, dir) != "f" {
		t.Errorf("%v; the last text is in place: %t; in the folder: %s", err, placed(texts[last]), names(t, dir))
	}
}

// setAttributes gives a file one extended attribute of each kind that this machine's filesystem supports.
func setAttributes(t *testing.T, file string) map[string]string {
	t.Helper()
	set := map[string]string{}
	for name, value := range map[string]string{"user.neardns": "a", "security.selinux": "system_u:object_r:net_conf_t:s0\x00", "trusted.neardns": "b"} {
		if err := unix.Lsetxattr(file, name, []byte(value), 0); err == nil {
			set[name] = value
		}
	}
	return set
}

// Without CAP_SYS_ADMIN, a process cannot set most attributes security.*: copyAttributes then returns ErrAttributes.
func TestAttributesThatCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	testutil.Must(t, os.WriteFile(file, []byte("old"), 0o640))
	if unix.Lsetxattr(file, "security.neardns", []byte("x"), 0) != nil {
		t.Skip("no security attribute can be set here")
	}
	testutil.WithoutCapabilities(t, func() {
		f, err := os.CreateTemp(t.TempDir(), "atomicfile")
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if err := copyAttributes(f, file); !errors.Is(err, ErrAttributes) || !strings.Contains(err.Error(), "security.neardns") {
			t.Error(err)
		}
	})
}

// A second program waits for the lock, until its context ends.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(t.Context(), dir)
	testutil.Must(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Lock(ended, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("a second one: %v", err)
	}
	unlock()
	unlock, err = Lock(t.Context(), dir)
	testutil.Must(t, err)
	unlock()
	if _, err := Lock(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there")
	}
}

// A program that waits gets the lock when it is free, and gives up when its time is over.
func TestLockIsAwaited(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		unlock, err := Lock(t.Context(), dir)
		testutil.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
		defer cancel()
		if _, err := Lock(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("of a lock that is never free: %v", err)
		}
		time.AfterFunc(5*lockPoll/2, unlock)
		begun := time.Now()
		second, err := Lock(t.Context(), dir)
		testutil.Must(t, err)
		defer second()
		if waited := time.Since(begun); waited != 3*lockPoll {
			t.Errorf("waited %v, want %v", waited, 3*lockPoll)
		}
	})
}
