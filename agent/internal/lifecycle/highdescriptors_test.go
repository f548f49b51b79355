package lifecycle

import (
	"os"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Descriptors opened between reserveLow and release have high numbers, and later ones have low numbers again.
func TestHigh(t *testing.T) {
	open := func() int {
		f, err := os.Open(os.DevNull)
		testutil.Must(t, err)
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
