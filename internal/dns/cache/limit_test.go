package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// limitError is the failure of an upstream plugin that is at its own limit.
type limitError struct{ error }

func (limitError) Limit() bool { return true }

// A failure that comes from a limit of this agent goes to all clients that wait for it, and is not stored: a later query is forwarded.
func TestOwnLimitIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n servfail 5s\n }")
		f.answer = late(4*time.Second, fails(fmt.Errorf("plugin/ask: %w", limitError{errors.New("silent")})))
		told := make(chan string)
		for range 2 {
			go func() { told <- f.ask("slow.example.") }()
		}
		for range 2 {
			if got := <-told; !strings.HasPrefix(got, "SERVFAIL") {
				t.Errorf("told %q", got)
			}
		}
		testutil.Equal(t, "upstream queries for both", 1, f.asked.Load())
		f.answer = address("192.0.2.1", 60)
		f.want("slow.example.", "NOERROR 192.0.2.1 60")
		f.answer = fails(errors.New("connection refused"))
		f.ask("refused.example.")
		f.answer = address("192.0.2.1", 60)
		f.want("refused.example.", "SERVFAIL") // that is the upstream's, and kept
	})
}

// TestManyStaleNames: if the upstream falls silent and more names than usual have just expired, a client of each still gets its stale entry
// within verify's time.
func TestManyStaleNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "cache {\n serve_stale 1h verify 1900ms 30s 30s\n stale_on_silence\n}")
		f.answer = address("192.0.2.1", 5)
		const names = 1000
		for i := range names {
			f.ask(fmt.Sprintf("n%d.example.", i))
		}
		<-time.After(6 * time.Second)
		f.answer = late(4500*time.Millisecond, fails(limitError{errors.New("silent")}))
		begun := time.Now()
		answers := make(chan string, names)
		for i := range names {
			go func() { answers <- f.ask(fmt.Sprintf("n%d.example.", i)) }()
		}
		for range names {
			if got := <-answers; !strings.HasPrefix(got, "NOERROR 192.0.2.1") {
				t.Fatalf("got %q after %v", got, time.Since(begun))
			}
		}
		if took := time.Since(begun); took > 1900*time.Millisecond {
			t.Errorf("the last client waited %v", took)
		}
		<-time.After(5 * time.Second) // for the refreshes
	})
}
