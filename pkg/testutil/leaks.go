package testutil

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// NoLeaks is the TestMain of a package whose tests leave no goroutine behind. On a busy machine, an ended test's goroutines may take long
// to end, so it waits for them for Patience. It does not return.
func NoLeaks(m *testing.M, but ...goleak.Option) {
	code := m.Run()
	begun := time.Now()
	for code == 0 {
		err := goleak.Find(but...) // it tries for half a second
		if err == nil {
			break
		}
		if time.Since(begun) > Patience() {
			fmt.Fprintln(os.Stderr, "after all tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
