package bpf

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTakeOver: a level that is opened again has no answers, whether the process before is dead or alive. Another size is another level.
func TestTakeOver(t *testing.T) {
	l := open(t, 8)
	folder := filepath.Dir(l.folder)
	a, frame := numbered(t, 1)
	put(t, l, a)
	other := openIn(t, folder, 8)
	wantPassed(t, l, frame, nil)
	if len(other.byPlace) != 0 || len(other.free[0]) != 8 {
		t.Errorf("taken over: %d answers, %d free slots", len(other.byPlace), len(other.free[0]))
	}
	// Answers in the same slots and buckets: what the process before it left is not in their way.
	for i := range 8 {
		b, frame := numbered(t, i+1)
		put(t, other, b)
		wantAnswered(t, other, frame, b)
	}
	for i := range 8 {
		b, frame := numbered(t, i+1)
		testutil.Must(t, other.Remove(b.Key))
		wantPassed(t, l, frame, nil)
	}

	larger := openIn(t, folder, 16)
	testutil.Equal(t, "answers of another level", 0, len(larger.byPlace))
	testutil.Must(t, larger.Retire())
	if builds, err := os.ReadDir(folder); err != nil || len(builds) != 1 || builds[0].Name() != filepath.Base(larger.folder) {
		t.Errorf("after Retire: %v, %v", builds, err)
	}
	testutil.Must(t, Sweep(folder))
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Sweep: %v", err)
	}
	testutil.Check(t, Sweep(folder), "a second Sweep")
}

// TestHalfDone: the pins of a process that was killed while it opened the level are removed.
func TestHalfDone(t *testing.T) {
	folder := bpffs(t)
	half := filepath.Join(folder, version(Options{Entries: 8}))
	testutil.Must(t, os.MkdirAll(filepath.Join(half, linksName), 0o700))
	openIn(t, folder, 8)
	// The same for one that was killed while it took the level away.
	testutil.Must(t, os.Remove(filepath.Join(half, objectMapSlots)))
	l := openIn(t, folder, 8)
	testutil.Must(t, l.Serve([]netip.AddrPort{at53(server4)}))
	a, frame := numbered(t, 1)
	put(t, l, a)
	wantAnswered(t, l, frame, a)
	next := openIn(t, folder, 8)
	put(t, next, a)
	wantAnswered(t, l, frame, a) // by the same maps
	testutil.Must(t, Sweep(folder))
}
