package nodestate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if _, ok, err := ReadWatch(dir); ok || err != nil {
		t.Errorf("before any: %v %v", ok, err)
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, want := range []Watch{
		{Since: now, Looked: now.Add(time.Minute), Network: "pods", OK: true, Repairs: 4, Fighting: true},
		{Since: now, Looked: now.Add(time.Hour), Fault: "no network is configured"},
	} {
		testutil.Must(t, WriteWatch(dir, want))
		got, ok, err := ReadWatch(dir)
		if d := cmp.Diff(want, got); !ok || err != nil || d != "" {
			t.Errorf("read %v %v (-want +got):\n%s", ok, err, d)
		}
	}
	for range 2 {
		testutil.Must(t, RemoveWatch(dir))
	}
	testutil.Must(t, os.WriteFile(WatchPath(dir), []byte("{"), 0o600))
	if _, ok, err := ReadWatch(dir); ok || err == nil {
		t.Errorf("of half a file: %v %v", ok, err)
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	if err := WriteWatch(filepath.Join(dir, "file"), Watch{}); err == nil {
		t.Error("it is written into a file")
	}
}
