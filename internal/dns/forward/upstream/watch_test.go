package upstream

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write sets a file's content to one letter in one step. If it emptied the file first, a watcher could read the empty file on a busy
// machine and send one more value.
func write(t *testing.T, path, letter string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		made := filepath.Join(t.TempDir(), "made")
		must(t, os.WriteFile(made, []byte(letter), 0o644))
		must(t, os.Rename(made, path))
		return
	}
	defer f.Close()
	_, err = f.WriteString(letter)
	must(t, err)
}

// watch runs a test in a bubble, whose clock moves while the watch waits for its next check, with a watch of paths.
func watch(t *testing.T, paths []string, test func(t *testing.T, ticked func(what string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ticks := Watch(ctx, paths)
		test(t, func(what string) {
			t.Helper()
			select {
			case <-ticks:
			case <-time.After(2 * poll):
				t.Fatal("not seen: ", what)
			}
		})
		cancel()
		for range ticks {
			t.Error("a tick after the end")
		}
	})
}

// TestLargeFile: of a large file only size and time are compared; a geo database has 70 MB.
func TestLargeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	must(t, os.WriteFile(path, nil, 0o644))
	must(t, os.Truncate(path, large+1))
	at := time.Unix(1, 0)
	must(t, os.Chtimes(path, at, at))
	first := content([]string{path})
	write(t, path, "x")
	must(t, os.Chtimes(path, at, at))
	if content([]string{path}) != first {
		t.Error("the content is read")
	}
	must(t, os.Chtimes(path, at, at.Add(1)))
	if content([]string{path}) == first {
		t.Error("another time is no change")
	}
	must(t, os.Truncate(path, large+2))
	must(t, os.Chtimes(path, at, at))
	if content([]string{path}) == first {
		t.Error("another length is no change")
	}
}

// TestSameContentIsNoChange: a file that is touched or replaced but has the same content is no change, nor is new content of a watched
// folder's file.
func TestSameContentIsNoChange(t *testing.T) {
	dir := t.TempDir()
	file, link, folder := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "custom")
	must(t, os.Mkdir(folder, 0o755))
	write(t, file, "1")
	write(t, filepath.Join(dir, "one"), "1")
	write(t, filepath.Join(dir, "two"), "1")
	must(t, os.Symlink("one", link))
	write(t, filepath.Join(folder, "a.override"), "1")
	paths := []string{file, link, folder + "/"}
	first := content(paths)
	for what, change := range map[string]func(){
		"nothing":        func() {},
		"written again":  func() { write(t, file, "1") },
		"other time":     func() { must(t, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0))) },
		"another file":   func() { write(t, filepath.Join(dir, "other"), "2") },
		"another link":   func() { must(t, os.Remove(link)); must(t, os.Symlink("two", link)) },
		"in a folder":    func() { write(t, filepath.Join(folder, "a.override"), "2") },
		"kubelet's swap": func() { write(t, filepath.Join(folder, "..data"), "") },
	} {
		if change(); content(paths) != first {
			t.Fatalf("%s: taken for a change", what)
		}
	}
	write(t, file, "3")
	if content(paths) == first {
		t.Error("a change is not seen")
	}
}

func TestWatchFile(t *testing.T) {
	dir := t.TempDir()
	conf, other := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "other")
	write(t, conf, "1")
	watch(t, []string{conf}, func(t *testing.T, ticked func(string)) {
		write(t, conf, "2")
		ticked("written in place")

		write(t, other, "3")
		must(t, os.Rename(other, conf))
		ticked("replaced by rename")

		must(t, os.Remove(conf))
		ticked("removed")

		write(t, conf, "4")
		ticked("back")
	})
}

// TestWatchSettles: a file that is written in two steps is one change.
func TestWatchSettles(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, conf, "1")
	watch(t, []string{conf}, func(t *testing.T, ticked func(string)) {
		time.Sleep(poll / 2) // checks are at multiples of poll
		must(t, os.Truncate(conf, 0))
		time.Sleep(poll/2 + settle/2)
		write(t, conf, "2")
		ticked("both steps")
		time.Sleep(2 * poll) // a second tick would be found at the end
	})
}

// In a folder, only the names of the files count, not their contents, and not the names that the kubelet swaps.
func TestWatchFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "custom")
	watch(t, []string{dir + "/"}, func(t *testing.T, ticked func(string)) {
		must(t, os.Mkdir(dir, 0o755))
		file := filepath.Join(dir, "a.override")
		write(t, file, "1")
		ticked("a file in a folder that came")

		must(t, os.Remove(file))
		ticked("one that went")
	})
}

// As the kubelet does it: each key is a symlink through ..data, which is swapped by rename; then the old folder is removed.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "stubDomains")
	project := func(version, text string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o755))
		write(t, filepath.Join(dir, version, "stubDomains"), text)
		must(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			must(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	project("..2026_1", "z")
	must(t, os.Symlink("..data/stubDomains", key))
	watch(t, []string{key, filepath.Join(dir, "upstreamNameservers")}, func(_ *testing.T, ticked func(string)) {
		for i, text := range []string{"a", "b", "c"} {
			project("..2026_x"+string(rune('a'+i)), text)
			ticked("swap to " + text)
		}
	})
}

// As with systemd-resolved: /etc/resolv.conf leads to another folder, where the file is replaced.
func TestWatchThroughLink(t *testing.T) {
	etc, run := t.TempDir(), t.TempDir()
	link, stub, direct := filepath.Join(etc, "resolv.conf"), filepath.Join(run, "stub"), filepath.Join(run, "direct")
	write(t, stub, "1")
	write(t, direct, "2")
	must(t, os.Symlink(stub, link))
	watch(t, []string{link}, func(t *testing.T, ticked func(string)) {
		write(t, stub+".new", "3")
		must(t, os.Rename(stub+".new", stub))
		ticked("target replaced")

		must(t, os.Symlink(direct, link+".new"))
		must(t, os.Rename(link+".new", link))
		ticked("link set elsewhere")

		write(t, direct, "4")
		ticked("new target written")
	})
}

func TestWatchFolderThatComes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "neardns")
	file := filepath.Join(dir, "node.yaml")
	watch(t, []string{file}, func(t *testing.T, ticked func(string)) {
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.WriteFile(file, []byte("1"), 0o644))
		ticked("folder and file")
		write(t, file, "2")
		ticked("file in the new folder")
		must(t, os.RemoveAll(dir))
		ticked("folder removed")
		must(t, os.Mkdir(dir, 0o755))
		write(t, file, "3")
		ticked("folder again")
	})
}

// A FIFO at a path is no file that can be read: opening it would block until a program writes into it.
func TestWatchDoesNotBlockOnFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	absent := content([]string{path})
	must(t, syscall.Mkfifo(path, 0o600))
	if content([]string{path}) != absent {
		t.Error("a FIFO has content")
	}
}
