package lead

import (
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// However often a run fails, for example because a webhook refuses the label of one node, the next one comes when a poll would.
func TestRetry(t *testing.T) {
	limiter := Retry().RateLimiter
	var wait time.Duration
	for range 100 {
		next := limiter.When(ctrl.Request{})
		if next < wait || next > 10*time.Second {
			t.Fatalf("the wait after %s is %s", wait, next)
		}
		wait = next
	}
	if wait != 10*time.Second {
		t.Errorf("the longest wait is %s", wait)
	}
}
