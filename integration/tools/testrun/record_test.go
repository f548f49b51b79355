package main

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestRecord(t *testing.T) {
	testutil.RequireRoot(t) // it reads the clock
	file := filepath.Join(t.TempDir(), "runs")
	testutil.Must(t, record(t.Context(), file, "0.50", true, 5*time.Minute))
	testutil.Must(t, record(t.Context(), file, "2.00", false, time.Hour))
	text := testutil.ReadFile(t, file)
	const line = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| \S.* \| load `
	if !regexp.MustCompile(`^` + line + `0.50 before, \S+ after \| passed \| 5m0s\n` + line + `2.00 before, \S+ after \| FAILED \| 1h0m0s\n$`).MatchString(text) {
		t.Errorf("recorded:\n%s", text)
	}
}
