package prober

import (
	"errors"
	"fmt"
	"os"

	"github.com/neardns/neardns/agent/internal/sole"
	"github.com/neardns/neardns/pkg/steer"
)

// hold is the right to be the prober of a netns. It goes with the process, as the prober's link does, so it tells a dead
// predecessor's link from a live one's.
type hold struct{ f *os.File }

func takeHold(h host) (*hold, error) {
	var f *os.File
	err := h.Do(func() (err error) {
		f, err = sole.Take(steer.ProberInterface)
		if errors.Is(err, sole.ErrHeld) {
			return fmt.Errorf("%w: stop it first: %w", ErrHeld, err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &hold{f}, nil
}

func (h *hold) release() error {
	if h == nil {
		return nil
	}
	return h.f.Close()
}
