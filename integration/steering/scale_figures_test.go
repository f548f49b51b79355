//go:build scale

package steering

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// drawing is a table of docs/project/scale.md, which integration/docs draws.
type drawing struct {
	Head []string   `json:"head"`
	Rows [][]string `json:"rows"`
}

// figures collect one table.
type figures struct {
	t    *testing.T
	name string
	drawing
}

func (f *figures) row(cells ...any) {
	f.t.Helper()
	var row []string
	for _, c := range cells {
		row = append(row, fmt.Sprint(c))
	}
	f.Rows = append(f.Rows, row)
	f.t.Logf("%q", row)
}

// keep puts the table into the file that NEARDNS_SCALE names, next to the others that are there. A test that failed measured nothing.
func (f *figures) keep() {
	f.t.Helper()
	file := os.Getenv("NEARDNS_SCALE")
	if file == "" || f.t.Failed() {
		return
	}
	all := map[string]drawing{}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.t.Fatal(err)
	}
	all[f.name] = f.drawing
	if text, err = json.MarshalIndent(all, "", "  "); err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	testutil.Must(f.t, err)
}

// held returns an error unless the agent is ready and has all leases.
func (n *node) held() error {
	a, err := n.agentStatus()
	if err == nil && (!a.Ready || len(n.leases()) < len(n.all())) {
		err = fmt.Errorf("not ready: %+v", a)
	}
	return err
}

// until is how long it takes to be so.
func until(t *testing.T, f func() error) time.Duration {
	t.Helper()
	begun := time.Now()
	testutil.Within(t, 2*time.Minute, f)
	return time.Since(begun).Round(10 * time.Millisecond)
}

func mebi(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
