package lifecycle

import (
	"path/filepath"
	"strings"
	"testing"
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
