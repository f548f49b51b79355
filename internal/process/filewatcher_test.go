package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/tick"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

var quietLog = slog.New(slog.DiscardHandler)

// write sets a file's content to one letter in one step. If it emptied the file first, a watcher could read the empty file on a busy
// machine and send one more value.
func write(t *testing.T, path, letter string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		made := filepath.Join(t.TempDir(), "made") // not in the folder that is watched
		testutil.WriteFile(t, made, letter)
		testutil.Must(t, os.Rename(made, path))
		return
	}
	defer f.Close()
	_, err = f.WriteString(letter)
	testutil.Must(t, err)
}

// start follows files with short times. Without notify it only polls. The channel gets a value for each reload.
func start(t *testing.T, notify bool, poll time.Duration, paths ...string) <-chan struct{} {
	t.Helper()
	testutil.RequireRoot(t) // the kernel reports changes of files
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{log: quietLog, settle: 20 * time.Millisecond, patience: 200 * time.Millisecond, poll: poll}
	if notify {
		w.open()
		if w.notify == nil {
			t.Fatal("no inotify")
		}
	}
	ticks, done, watched := tick.New(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		first := sync.OnceFunc(func() { close(watched) })
		calls := 0
		w.run(ctx, nil, false, func() []string {
			if calls++; calls > 1 { // the files are watched
				first()
			}
			return paths
		}, ticks.Send)
	}()
	<-watched
	t.Cleanup(func() { cancel(); <-done })
	return ticks
}

func ticked(t *testing.T, ticks <-chan struct{}, what string) {
	t.Helper()
	t.Log("waits for: ", what)
	testutil.Receive(t, ticks)
}

// TestLargeFile: a file is compared without holding it in memory; a geo database has 70 MB.
func TestLargeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	testutil.Must(t, os.WriteFile(path, nil, 0o644))
	testutil.Must(t, os.Truncate(path, 16<<20))
	w := &watcher{paths: []string{path}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	first := w.content()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("it allocated %d bytes", n)
	}
	testutil.Must(t, os.Truncate(path, 16<<20+1))
	if w.content() == first {
		t.Error("another length is no change")
	}
}

// TestSameContentIsNoChange: a file that is touched or replaced but has the same content makes no tick, nor does new content of a watched
// folder's file.
func TestSameContentIsNoChange(t *testing.T) {
	dir := t.TempDir()
	file, link, folder := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "custom")
	testutil.Must(t, os.Mkdir(folder, 0o755))
	write(t, file, "1")
	write(t, filepath.Join(dir, "one"), "1")
	write(t, filepath.Join(dir, "two"), "1")
	testutil.Must(t, os.Symlink("one", link))
	write(t, filepath.Join(folder, "a.override"), "1")
	w := &watcher{paths: []string{file, link, folder + "/"}, log: quietLog}
	w.check()
	for what, change := range map[string]func(){
		"nothing":        func() {},
		"written again":  func() { write(t, file, "1") },
		"other time":     func() { testutil.Must(t, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0))) },
		"another file":   func() { write(t, filepath.Join(dir, "other"), "2") },
		"another link":   func() { testutil.Must(t, os.Remove(link)); testutil.Must(t, os.Symlink("two", link)) },
		"in a folder":    func() { write(t, filepath.Join(folder, "a.override"), "2") },
		"kubelet's swap": func() { write(t, filepath.Join(folder, "..data"), "") },
	} {
		if change(); w.check() {
			t.Fatalf("%s: taken for a change", what)
		}
	}
	write(t, file, "3")
	if !w.check() {
		t.Error("a change is not seen")
	}
}

const never = time.Hour

func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	conf, other := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "other")
	write(t, conf, "1")
	ticks := start(t, true, never, conf)

	write(t, conf, "2")
	ticked(t, ticks, "written in place")

	write(t, other, "3")
	testutil.Must(t, os.Rename(other, conf))
	ticked(t, ticks, "replaced by rename")

	testutil.Must(t, os.Remove(conf))
	ticked(t, ticks, "removed")

	write(t, conf, "4")
	ticked(t, ticks, "back")
}

// As the kubelet does it: each key is a symlink through ..data, which is swapped by rename; then the old folder is removed.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "stubDomains")
	project := func(version, text string) {
		testutil.Must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		write(t, filepath.Join(dir, version, "stubDomains"), text)
		testutil.Must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		testutil.Must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			testutil.Must(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	project("..2026_1", "z")
	testutil.Must(t, os.Symlink("..data/stubDomains", key))
	ticks := start(t, true, never, key, filepath.Join(dir, "upstreamNameservers"))
	for i, text := range []string{"a", "b", "c"} {
		project("..2026_x"+string(rune('a'+i)), text)
		ticked(t, ticks, "swap to "+text)
	}
}

// As with systemd-resolved: /etc/resolv.conf leads to another folder, where the file is replaced.
func TestWatchThroughLink(t *testing.T) {
	etc, run := t.TempDir(), t.TempDir()
	link, stub, direct := filepath.Join(etc, "resolv.conf"), filepath.Join(run, "stub"), filepath.Join(run, "direct")
	write(t, stub, "1")
	write(t, direct, "2")
	testutil.Must(t, os.Symlink(stub, link))
	ticks := start(t, true, never, link)

	write(t, stub+".new", "3")
	testutil.Must(t, os.Rename(stub+".new", stub))
	ticked(t, ticks, "target replaced")

	testutil.Must(t, os.Symlink(direct, link+".new"))
	testutil.Must(t, os.Rename(link+".new", link))
	ticked(t, ticks, "link set elsewhere")

	write(t, direct, "4")
	ticked(t, ticks, "new target written")
}

// A folder that is watched itself has another list of files; the contents do not count (TestSameContentIsNoChange).
func TestWatchFolderThatComes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "neardns")
	file := filepath.Join(dir, "node.yaml")
	ticks, list := start(t, true, never, file), start(t, true, never, dir+"/")
	testutil.Must(t, os.Mkdir(dir, 0o755))
	testutil.Must(t, os.WriteFile(file, []byte("1"), 0o644)) // in two steps, for once
	ticked(t, ticks, "folder and file")
	ticked(t, list, "a file in a folder that came")
	write(t, file, "2")
	ticked(t, ticks, "file in the new folder")
	testutil.Must(t, os.RemoveAll(dir))
	ticked(t, ticks, "folder removed")
	ticked(t, list, "the file that went")
	testutil.Must(t, os.Mkdir(dir, 0o755))
	write(t, file, "3")
	ticked(t, ticks, "folder again")
}

// A folder with continuous changes must not delay a check without limit.
func TestWatchBusyFolder(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	ticks := start(t, true, never, conf)
	write(t, conf, "1")
	for ctx, n := testutil.Context(t), 0; ; n++ {
		write(t, filepath.Join(dir, "log"), string(rune('a'+n%20)))
		select {
		case <-ticks:
			return
		case <-ctx.Done():
			t.Fatal("not seen")
		default:
		}
	}
}

func TestWatchWithoutNotify(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	ticks := start(t, false, 10*time.Millisecond, conf)
	write(t, conf, "1")
	ticked(t, ticks, "file came")
}

// A FIFO at a path is no file that can be read: opening it would block until a program writes into it.
func TestWatchDoesNotBlockOnFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	absent := (&watcher{paths: []string{path}}).content()
	testutil.Must(t, syscall.Mkfifo(path, 0o600))
	if (&watcher{paths: []string{path}}).content() != absent {
		t.Error("a FIFO has content")
	}
}
