package lifecycle

import (
	"log/slog"
	"testing"
)

// A program that cannot be loaded may have left pinned maps, so "off" removes them.
func TestFailedOpenIsSwept(t *testing.T) {
	k := &kernel{log: slog.New(slog.DiscardHandler), folder: t.TempDir(), swept: true}
	if err := k.openLevel(); err == nil {
		t.Fatal("maps pinned outside of a BPF file system")
	}
	if k.swept {
		t.Error("swept, although the program was opened since")
	}
}
