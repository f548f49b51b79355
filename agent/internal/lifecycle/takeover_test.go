package lifecycle

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestOneAgentAStateFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = hold(dir)
	if err == nil || !strings.Contains(err.Error(), "another agent (process ") || !strings.Contains(err.Error(), dir) {
		t.Errorf("second holder: %v", err)
	}
	if !IsLocked(err) {
		t.Errorf("an error of another kind: %v", err)
	}
	release()
	release, err = hold(dir)
	if err != nil {
		t.Fatalf("free again: %v", err)
	}
	release()
}

// A cache from another boot is not taken over, because its age is unknown; its format is not what is wrong with it.
func TestRestoreOfUnknownAge(t *testing.T) {
	conf := config.Default()
	keeper := newAnswers(slog.New(slog.DiscardHandler), &conf)
	var snapshot, logs bytes.Buffer
	keeper.Boot = func() answers.Boot { return answers.Boot{ID: [16]byte{1}, Since: time.Minute} }
	testutil.Must(t, keeper.Snapshot(&snapshot))
	keeper.Boot = func() answers.Boot { return answers.Boot{ID: [16]byte{2}, Since: time.Minute} }
	s := &successor{log: slog.New(slog.NewTextHandler(&logs, nil)), answers: keeper}
	if s.Restore(&snapshot); s.restored || !strings.Contains(logs.String(), "unknown_age=true") {
		t.Errorf("restored: %t, %s", s.restored, &logs)
	}
}
