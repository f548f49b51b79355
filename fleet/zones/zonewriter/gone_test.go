package zonewriter

import (
	"testing"
	"time"
)

// Records that another writer takes away are written again at once, and then later each time. A change waits for none of that.
func TestRepairPause(t *testing.T) {
	p, h, now := &Publisher{o: Options{Validate: time.Hour}}, &host{}, time.Unix(0, 0)
	for i, shortest := range []time.Duration{0, pause * 8 / 10, pause * 16 / 10, pause * 32 / 10} {
		h.status.Programmed = true
		if waits := p.gone(h, 0, now); waits != (i > 0) || i > 0 && h.next.Sub(now) < shortest {
			t.Errorf("gone %d times: waits: %t, until %v", i+1, waits, h.next)
		}
		now = h.next
	}
	h.status.Programmed = true
	if !p.gone(h, 0, now) {
		t.Fatal("a fifth repair does not wait")
	}
	h.set++
	if p.gone(h, 0, now) {
		t.Error("a change waits for the repair")
	}
}
