//go:build timing

package commands

import (
	"testing"
	"time"

	"github.com/neardns/neardns/internal/cli"
)

// TestTimingShortManyNodes checks over real connections that the program lists 500 nodes within 10 s.
//
// State: TestManyNodes. Bound: TestManyNodes.
func TestTimingShortManyNodes(t *testing.T) {
	for name, make := range map[string]func() (*fakeAPI, map[string]int){"of all kinds": manyNodes, "none answers": deafNodes} {
		t.Run(name, func(t *testing.T) {
			f, _ := make()
			begun := time.Now()
			code, _, errs := f.command(t, "status")
			took := time.Since(begun)
			if code != cli.Degraded || took > 10*time.Second {
				t.Errorf("exit code %d after %v: %s", code, took, errs)
			}
			t.Logf("500 nodes in %v", took.Round(time.Millisecond))
		})
	}
}
