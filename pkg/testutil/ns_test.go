package testutil

import (
	"errors"
	"os"
	"testing"
)

func TestSweep(t *testing.T) {
	RequireRoot(t)
	ns := NewNS(t, "abandoned")
	_ = ns.lock.Close() // what the kernel does for a killed process
	NewNS(t, "next")
	Eventually(t, func() error { // another process's sweep may have been faster, and still be at it
		_, err := os.Stat(ns.Path())
		return ErrorIf(!errors.Is(err, os.ErrNotExist), "an abandoned namespace was not swept (%w)", err)
	})
	kept := NewNS(t, "kept")
	kept.Keep()
	kept.Close()
	NewNS(t, "another")
	if _, err := os.Stat(kept.Path()); err != nil {
		t.Errorf("a kept namespace was swept: %v", err)
	}
	removeNS(kept.Path())
}

func TestDoPassesPanicOn(t *testing.T) {
	RequireRoot(t)
	ns := NewNS(t, "panic")
	defer func() {
		if recover() != "boom" {
			t.Error("panic in Do did not reach the caller")
		}
	}()
	ns.Do(func() { panic("boom") })
}
