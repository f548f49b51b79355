package testutil

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// NoLeaks is the TestMain of a package whose tests leave no goroutine behind. On a busy machine, an ended test's goroutines may take long
// to end, so the only limit is the package's own (go test -timeout). It does not return.
func NoLeaks(m *testing.M, but ...goleak.Option) {
	begun := time.Now()
	code := m.Run()
	for code == 0 {
		err := goleak.Find(but...) // it tries for half a second
		if err == nil {
			break
		}
		if limit := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); limit > 0 && time.Since(begun) > limit {
			fmt.Fprintln(os.Stderr, "after all tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
