//go:build timing

package main

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingShortLatency fails when the gain of a cache on the node is gone: kube-dns is five milliseconds away, and the median lookup
// takes more than half as long as it does through kube-dns in the same run. The stands take turns, so a busy machine is as busy for both.
// State: TestShort. Bound: half; a hit takes a tenth or less.
func TestTimingShortLatency(t *testing.T) {
	testutil.RequireRoot(t)
	root, err := filepath.Abs("../..")
	testutil.Must(t, err)
	o := &options{rounds: 3, length: time.Second, rate: 500, loss: 1, away: 5 * time.Millisecond, root: root}
	if err := o.check(); err != nil {
		testutil.Skip(t, err.Error())
	}
	dir := t.TempDir()
	stands := []*stand{newStand(t, o, dir, false), newStand(t, o, dir, true)}
	var rounds [2][]round
	for range o.rounds {
		for i, s := range stands {
			rounds[i] = append(rounds[i], s.round(o, 0))
		}
	}
	without, with := sumUp(rounds[0]), sumUp(rounds[1])
	text := fmt.Sprintf("the median lookup takes %v without neardns, %v with it; the 99th percentile %v and %v",
		without.Times[0], with.Times[0], without.Times[3], with.Times[3])
	t.Log(text)
	if without.Times[0] < o.away {
		t.Errorf("kube-dns is not that far away: %s", text)
	}
	if with.Times[0] > without.Times[0]/2 {
		t.Errorf("the gain is gone: %s", text)
	}
}
