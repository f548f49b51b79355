//go:build timing

package main

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingShortLatency fails when the gain of a cache on the node is gone: kube-dns is five milliseconds away, and the median lookup
// takes more than half as long as it does through kube-dns in the same run. The stands take turns, so a busy machine is as busy for both.
//
// State: TestNothingTracked. Bound: none, it compares two servers; a hit takes a tenth of the other's time or less.
func TestTimingShortLatency(t *testing.T) {
	o := &options{rounds: 3, length: time.Second, rate: 500, loss: 1, away: 5 * time.Millisecond}
	first, second := newStands(t, o)
	var rounds [2][]round
	for range o.rounds {
		for i, s := range []*stand{first, second} {
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

// TestTimingShortBenefit is the short form of `make benefit`, with so much lost that it shows whatever else the machine does: where each
// query to kube-dns is lost with a probability of 20 %, so that a lookup loses one of its two with 36 %, at most half as many missed lookups.
//
// State: TestNothingTracked. Bound: none, it compares two servers in the same minutes.
func TestTimingShortBenefit(t *testing.T) {
	testutil.RequireRoot(t)
	root, err := filepath.Abs("../..")
	testutil.Must(t, err)
	o := &options{rounds: 1, length: 2 * time.Second, rate: 100, loss: 20, away: time.Millisecond, root: root}
	if err := o.check(); err != nil {
		testutil.Skip(t, err.Error())
	}
	results := measure(t, o, io.Discard)
	for _, r := range results {
		t.Logf("%s: without %+v, with %+v", r.Title, r.Without, r.With)
		testutil.Equal(t, r.Title+": lookups", 200, r.Without.Lookups)
	}
	if lossy := results[1]; lossy.Without.Missed < 20 || lossy.With.Missed > lossy.Without.Missed/2 {
		t.Errorf("lookups missed: %d without, %d with neardns", lossy.Without.Missed, lossy.With.Missed)
	}
}
