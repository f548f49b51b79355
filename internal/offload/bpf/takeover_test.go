package bpf

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestTakeOver: a level that is opened again has the same answers, whether the process before is dead or alive. Another size is another
// level.
func TestTakeOver(t *testing.T) {
	l := open(t, 8)
	folder := filepath.Dir(l.folder)
	again := func(entries int) *Level {
		t.Helper()
		o, err := Open(Options{Folder: folder, Entries: entries, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Close() })
		return o
	}
	a, frame := numbered(t, 1)
	put(t, l, a)
	b, _ := numbered(t, 2)
	put(t, l, b)
	other := again(8)
	if other.Len() != 2 || other.Generation() != l.Generation() || other.control != l.control {
		t.Errorf("taken over: %d answers of generation %d", other.Len(), other.Generation())
	}
	wantAnswered(t, other, frame, a)
	if err := other.Remove(group, a.Key); err != nil {
		t.Fatal(err)
	}
	wantPassed(t, l, frame, nil)
	// Both write at once; what either leaves, the next finds whole.
	var wg sync.WaitGroup
	for _, level := range []*Level{l, other} {
		wg.Go(func() {
			for i := range 200 {
				a, _ := numbered(t, i)
				if err := level.Put(&a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	third := again(8)
	places := 0
	for i := range third.buckets {
		var b objectBucket
		if err := third.objects.Places.Lookup(uint32(i), &b); err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Places {
			if p != 0 {
				places++
			}
		}
	}
	if places != third.Len() || places > 8 {
		t.Errorf("%d places, %d answers", places, third.Len())
	}

	larger := again(16)
	if larger.Len() != 0 {
		t.Errorf("%d answers of another level", larger.Len())
	}
	if err := larger.Retire(); err != nil {
		t.Fatal(err)
	}
	if builds, err := os.ReadDir(folder); err != nil || len(builds) != 1 || builds[0].Name() != filepath.Base(larger.folder) {
		t.Errorf("after Retire: %v, %v", builds, err)
	}
	if err := Sweep(folder); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Sweep: %v", err)
	}
	if err := Sweep(folder); err != nil {
		t.Errorf("a second Sweep: %v", err)
	}
}

// TestHalfDone: the pins of a process that was killed while it opened the level are removed.
func TestHalfDone(t *testing.T) {
	folder := bpffs(t)
	half := filepath.Join(folder, version(Options{Entries: 8}))
	if err := os.MkdirAll(filepath.Join(half, linksName), 0o700); err != nil {
		t.Fatal(err)
	}
	again := func() *Level {
		t.Helper()
		l, err := Open(Options{Folder: folder, Entries: 8, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	again()
	// The same for one that was killed while it took the level away.
	if err := os.Remove(filepath.Join(half, objectMapSlots)); err != nil {
		t.Fatal(err)
	}
	l := again()
	if err := l.Serve(map[netip.AddrPort]uint32{at53(server4): group}); err != nil {
		t.Fatal(err)
	}
	a, frame := numbered(t, 1)
	put(t, l, a)
	wantAnswered(t, l, frame, a)
	if again().Len() != 1 {
		t.Error("what stands in the folder is not whole")
	}
	if err := Sweep(folder); err != nil {
		t.Fatal(err)
	}
}
