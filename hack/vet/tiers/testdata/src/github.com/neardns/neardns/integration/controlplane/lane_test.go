package controlplane

import (
	"testing"
	"time"
)

func TestLane(t *testing.T) {
	begun := time.Now()
	time.Sleep(time.Millisecond)
	t.Log(time.Since(begun))
	if time.Since(begun) > time.Second { // want `a test of a real cluster judges a duration`
		t.Error("late")
	}
	for end := begun.Add(time.Second); time.Now().Before(end); {
	}
}
