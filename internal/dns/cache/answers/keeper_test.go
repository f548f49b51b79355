package answers

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func keeper(path string) (*Keeper, *testutil.Output) {
	log := new(testutil.Output)
	return &Keeper{Store: NewStore(0), Path: path, Boot: func() Boot { return first }, Log: slog.New(slog.NewTextHandler(log, nil))}, log
}

// wantLine checks that a log has one line, with these parts.
func wantLine(t *testing.T, what string, log *testutil.Output, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, part) {
			t.Errorf("%s: its log is %q, want one line with %q", what, text, part)
		}
	}
}

func TestKeeper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "cache.snapshot")
	synctest.Test(t, func(t *testing.T) {
		k, log := keeper(path)
		k.Load()
		testutil.Equal(t, "the log of a first start", "", log.String())
		key, _ := put(t, k.Store.Space(1), "a.example.", 600)
		k.Save()
		first, err := os.Stat(path)
		testutil.Must(t, err)
		if first.Mode().Perm() != 0o600 {
			t.Errorf("mode %v: names that pods ask for are nobody else's business", first.Mode())
		}
		fresh := k.Fresh()
		if !fresh.Equal(time.Now()) {
			t.Errorf("a snapshot of %s is fresh at %s", time.Now(), fresh)
		}
		<-time.After(time.Minute)
		k.Save() // nothing is new
		if got := k.Fresh(); !got.Equal(fresh.Add(time.Minute)) {
			t.Errorf("the snapshot was fresh at %s, and a minute later is at %s", fresh, got)
		}
		if again, err := os.Stat(path); err != nil || !os.SameFile(first, again) {
			t.Errorf("written again: %v", err)
		}
		next, log := keeper(path)
		next.Load()
		if got, _ := next.Store.Space(1).Get(key); got == nil {
			t.Error("nothing was restored")
		}
		wantLine(t, "restored", log, "entries=1")
		if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
			t.Errorf("left behind: %v, %v", files, err)
		}
	})
}

func TestKeeperOddFiles(t *testing.T) {
	dir := t.TempDir()
	k, _ := keeper(filepath.Join(dir, "good"))
	put(t, k.Store.Space(1), "a.example.", 600)
	k.Save()
	good := []byte(testutil.ReadFile(t, k.Path))
	for name, content := range map[string][]byte{"empty": {}, "cut": good[:len(good)/2], "foreign": []byte("#!/bin/sh\n"), "bit": append([]byte{good[0] ^ 1}, good[1:]...)} {
		path := filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(path, content, 0o600))
		next, log := keeper(path)
		next.Load()
		wantLine(t, name, log, "cannot restore", name)
		if n, _ := next.Store.Bytes(); n != 0 {
			t.Errorf("%s: %d bytes were taken over", name, n)
		}
		put(t, next.Store.Space(1), "a.example.", 600)
		next.Save() // the next one is good again
		after, log := keeper(path)
		after.Load()
		wantLine(t, name+", written over", log, "entries=1")
	}
}

// TestKeeperReadsOnlyFiles: a pipe, a device, a link or a folder in place of the snapshot or of its temporary file blocks neither Load nor
// Save.
func TestKeeperReadsOnlyFiles(t *testing.T) {
	for name, occupy := range map[string]func(path string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"link":   func(path string) error { return os.Symlink("/etc/passwd", path) },
		"folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(t.TempDir(), name)
		for _, p := range []string{path, path + ".new"} {
			testutil.Must(t, occupy(p))
		}
		k, log := keeper(path)
		k.Load() // a keeper that waits for a pipe or reads a device to its end hangs here
		put(t, k.Store.Space(1), "a.example.", 600)
		k.Save()
		if text := log.String(); !strings.Contains(text, "cannot restore") {
			t.Errorf("%s: its log is %q", name, text)
		}
		if name == "folder" {
			continue // a file cannot take its place
		}
		next, _ := keeper(path)
		next.Load()
		if n, _ := next.Store.Bytes(); n == 0 {
			t.Errorf("%s: it was not written over", name)
		}
	}
}

// TestKeeperCannotWrite: the snapshot's folder cannot be made, even by root, because a file is in its place.
func TestKeeperCannotWrite(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "folder")
	testutil.Must(t, os.WriteFile(blocked, nil, 0o600))
	k, log := keeper(filepath.Join(blocked, "cache.snapshot"))
	for i := range 3 {
		put(t, k.Store.Space(1), fmt.Sprintf("n%d.example.", i), 600)
		k.Save()
	}
	wantLine(t, "blocked", log, "cannot write")
	if fresh := k.Fresh(); fresh.Unix() != 0 {
		t.Errorf("what was never written is fresh at %s", fresh)
	}
	testutil.Must(t, os.Remove(blocked))
	k.Save()
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "written again") {
		t.Errorf("its log is %q", text)
	}
	_, err := os.Stat(k.Path)
	testutil.Check(t, err)
}

func TestKeeperRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.snapshot")
	synctest.Test(t, func(t *testing.T) {
		k, _ := keeper(path)
		begun := time.Now()
		var slept atomic.Int64
		k.Boot = func() Boot {
			return Boot{ID: [16]byte{1}, Since: time.Hour + time.Since(begun) + time.Duration(slept.Load())}
		}
		sp := k.Store.Space(1)
		sp.Retain()
		sp.SetBounds([classes]int{}, 0)
		for i, ttl := range []uint32{10, 6000} {
			put(t, sp, fmt.Sprintf("n%d.example.", i), ttl)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		<-time.After(90 * time.Second)
		testutil.Equal(t, "entries after a sweep", 1, sp.Len(Success))
		if _, err := os.Stat(path); err == nil {
			t.Error("saved too early")
		}
		<-time.After(2 * time.Minute)
		_, err := os.Stat(path)
		testutil.Check(t, err)
		key, _ := entry(t, "n1.example.", 0)
		e, _ := sp.Get(key)
		before := e.Left(k.Store.Now())
		slept.Store(int64(time.Hour)) // the machine was suspended
		<-time.After(sleepCheck + time.Millisecond)
		if gone := before - e.Left(k.Store.Now()); gone < 3600 || gone > 3602 {
			t.Errorf("an hour of sleep took %d s of a TTL", gone)
		}
		late := func() time.Duration {
			return time.Since(begun) + time.Duration(slept.Load()) - time.Duration(k.Store.Now())
		}
		was := late()
		for range 2 { // two suspends, neither of which is corrected by itself
			slept.Add(int64(600 * time.Millisecond))
			<-time.After(sleepCheck)
		}
		testutil.Equal(t, "how late the store's clock is after two short suspends", 0, late()-was)
		stop()
		<-done
	})
}
