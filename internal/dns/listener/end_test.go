package listener

import (
	"testing"
	"testing/synctest"
	"time"
)

type noSocket struct{ socket }

func (noSocket) Close() error { return nil }

// TestEnd: a point ends as soon as its last connection has, and reports one that is still open after maxDrain and maxCut.
func TestEnd(t *testing.T) {
	for last, ends := range map[time.Duration]bool{0: true, endLook: true, maxDrain + time.Second: true, maxDrain + maxCut + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			p := &point{protocol: "tcp", socket: noSocket{}, ended: make(chan struct{})}
			begun := time.Now()
			time.AfterFunc(last, func() { close(p.ended) })
			err := p.end()
			if took := time.Since(begun); took != min(last, maxDrain+maxCut) || (err == nil) != ends {
				t.Errorf("the last connection ends after %s: %v after %s", last, err, took)
			}
			<-p.ended
		})
	}
}
