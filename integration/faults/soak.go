package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// settleTime is how long what the faults left may take to go by itself: the longest timeout of a set's element or a tracked
// connection is two minutes.
const settleTime = 150 * time.Second

// soaked is what a soak came to.
type soaked struct {
	faults, asked, lost, wrong int
	fault                      map[string]int
}

// soakOurs has faults come at random times for the given time, and then looks for what was left. In its second half
// no fault ends the agent's process, so that the one that is looked at has lived through half of the soak.
func (o *options) soakOurs(t testutil.TB) {
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	t.Logf("soak of %v, seed %d", o.duration, o.seed)
	rng := rand.New(rand.NewPCG(o.seed, 0))
	s := newOurs(t, o.bin, scratch(t), o.lease)
	all := slices.DeleteFunc(allFaults(), func(f fault) bool {
		needs := deeds()[f.name].needs
		return needs != nil && needs(t, o.bin) != ""
	})
	lasting := slices.DeleteFunc(slices.Clone(all), func(f fault) bool { return f.ends })

	s.restore(false)
	first := s.settled(footprint{})
	process := first
	sum := soaked{fault: map[string]int{}}
	begun := time.Now()
	for time.Since(begun) < o.duration {
		choice := all
		if time.Since(begun) > o.duration/2 {
			choice = lasting
		}
		f := choice[rng.IntN(len(choice))]
		lead := 200*time.Millisecond + time.Duration(rng.Int64N(int64(4*time.Second)))
		got := try(s, f, lead)
		sum.faults++
		sum.fault[f.name]++
		sum.asked += got.UDP.Sent + got.TCP.Sent + got.TCPLong.Sent
		sum.lost += got.UDP.Missed() + got.tcpMissed()
		sum.wrong += got.wrong()
		t.Logf("%4.0f s  %-15s after %4.1f s: %s", time.Since(begun).Seconds(), f.name, lead.Seconds(), got.progress())
		s.restore(false)
		if s.server.PID() != process.PID {
			process = s.settled(footprint{})
		}
	}
	s.restore(false)
	// Of the node what was there at first is the measure; of the process, what it was when it had just been started.
	process.node = first.node
	last := s.settled(process)
	t.Logf("%d faults (%s), %d questions, %d lost, %d answered wrongly\n%s", sum.faults, counts(sum.fault), sum.asked, sum.lost, sum.wrong, sideBySide(process, last))
	var errs []error
	for _, l := range process.leaks(last) {
		errs = append(errs, errors.New("leak: "+l))
	}
	if sum.wrong > 0 {
		errs = append(errs, fmt.Errorf("%d answers were wrong", sum.wrong))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v", err)
	}
	t.Logf("no leaks")
}

func counts(m map[string]int) string {
	var out []string
	for _, f := range allFaults() {
		if m[f.name] > 0 {
			out = append(out, fmt.Sprintf("%s %d", f.name, m[f.name]))
		}
	}
	return strings.Join(out, ", ")
}

// settled takes a footprint after a calm load, once nothing in it has leaked since before, or the time to settle is over.
func (s *stand) settled(before footprint) footprint {
	heap := s.calm()
	deadline := time.Now().Add(settleTime)
	for {
		f := s.footprint()
		f.Heap = heap
		if before.PID == 0 || len(before.leaks(f)) == 0 || time.Now().After(deadline) {
			return f
		}
		s.pause(time.Second)
	}
}

// pause lets the agent be for a while.
func (s *stand) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.server.Exited():
	}
}
