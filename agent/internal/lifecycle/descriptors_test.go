package lifecycle

import (
	"os"
	"testing"
)

// What is opened under high has a high number, and afterwards numbers are low again.
func TestHigh(t *testing.T) {
	open := func() int {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return int(f.Fd())
	}
	before := open()
	release := reserveLow()
	if n := open(); n <= highDescriptor {
		t.Errorf("descriptor %d, want one above %d", n, highDescriptor)
	}
	release()
	if n := open(); n > before+8 {
		t.Errorf("descriptor %d afterwards, %d before", n, before)
	}
}
