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
	if _, ok, err := WatchFile(dir).Read(); ok || err != nil {
		t.Errorf("before any: %v %v", ok, err)
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, want := range []Watch{
		{Since: now, Looked: now.Add(time.Minute), Network: "pods", OK: true, Repairs: 4, Fighting: true},
		{Since: now, Looked: now.Add(time.Hour), Fault: "no network is configured"},
	} {
		testutil.Must(t, WatchFile(dir).Write(want))
		got, ok, err := WatchFile(dir).Read()
		if d := cmp.Diff(want, got); !ok || err != nil || d != "" {
			t.Errorf("read %v %v (-want +got):\n%s", ok, err, d)
		}
	}
	for range 2 {
		testutil.Must(t, WatchFile(dir).Remove())
	}
	testutil.Must(t, os.WriteFile(WatchFile(dir).Path, []byte("{"), 0o600))
	if _, ok, err := WatchFile(dir).Read(); ok || err == nil {
		t.Errorf("of half a file: %v %v", ok, err)
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	if err := WatchFile(filepath.Join(dir, "file")).Write(Watch{}); err == nil {
		t.Error("it is written into a file")
	}
}
