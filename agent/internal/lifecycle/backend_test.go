package lifecycle

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/neardns/neardns/pkg/steer/iptables"
)

// TestFilesAreStaleAfterABusyStart: while a start waits for iptables' lock, files may change from which the agent has made its plan.
func TestFilesAreStaleAfterABusyStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		for _, c := range []struct {
			results []error
			waited  bool
		}{
			{[]error{nil}, false},
			{[]error{refused}, false},
			{[]error{iptables.ErrLocked, iptables.ErrSlow, nil}, true},
			{[]error{iptables.ErrLocked, refused}, true},
		} {
			a, tries := &agent{log: slog.New(slog.DiscardHandler)}, 0
			err := a.retryWhileBusy(t.Context(), "a step", func() error {
				tries++
				return c.results[tries-1]
			})
			if last := c.results[len(c.results)-1]; !errors.Is(err, last) || tries != len(c.results) || a.waited != c.waited {
				t.Errorf("%v: %v after %d tries, waited %t", c.results, err, tries, a.waited)
			}
		}
	})
}
