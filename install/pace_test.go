package main

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := listPace()
	if p.rest() != 0 || p.wait(start) != 0 {
		t.Error("peace rests")
	}
	at := start
	for i, want := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		p.note(at)
		if p.rest() != want || p.wait(at) != want || p.wait(at.Add(want/2)) != want/2 || p.wait(at.Add(want)) != 0 {
			t.Errorf("blow %d: rest %v, wait %v, want %v", i+1, p.rest(), p.wait(at), want)
		}
		at = at.Add(want)
	}
	if !p.since.Equal(start) {
		t.Errorf("since %v", p.since)
	}
	for range 100 {
		p.note(at)
	}
	if p.rest() != p.longest {
		t.Errorf("rest %v after many blows, want at most %v", p.rest(), p.longest)
	}
	p.note(at.Add(p.calm + time.Second))
	if p.rest() != 0 || p.streak != 1 {
		t.Errorf("after a calm: %+v", p)
	}
}
