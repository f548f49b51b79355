//go:build timing

package a

import (
	"testing"
	"time"
)

func TestTimingB(t *testing.T) { time.Sleep(1) }

func TestOther(t *testing.T) {} // want `TestOther: a test of the timing tier is called TestTiming…, and no other is`
