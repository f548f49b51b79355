package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/integration/bench/paired"
)

// judged are the figures that a run is held to the committed result by.
var judged = []string{"server", "node", "p50", "p99", "hit", "RSS"}

// least is the change of a median that counts: two runs of the same programs differ by as much.
const least = 0.1

// worse lists the figures in which neardns stands worse next to the others than in the committed result. One ratio is worse where its
// interval lies beyond the committed one's and its median changed by a tenth. Neardns's figure is worse where its ratio to more
// than half of the servers is: that one server of six had a better day is no finding, and of some hundred intervals of 95 % a few
// miss.
func (r *report) worse(committed *report) []string {
	var out []string
	for _, subject := range r.subjects() {
		for _, k := range r.keys() {
			if slices.Contains(judged, k.Figure) {
				out = append(out, r.worseIn(committed, k, subject)...)
			}
		}
	}
	return out
}

func (r *report) worseIn(committed *report, k cellKey, subject string) []string {
	var text string
	compared, beyond := 0, 0
	for _, s := range r.others() {
		was, is := committed.ratio(k, subject, s), r.ratio(k, subject, s)
		if was.N < paired.Least || is.N < paired.Least {
			continue
		}
		compared++
		if isWorse(was, is, figureTexts[k.Figure].more) {
			beyond++
			text += fmt.Sprintf("; to %s %s, committed %s", s, is, was)
		}
	}
	if beyond*2 <= compared {
		return nil
	}
	return []string{fmt.Sprintf("%s, %s, %s, %s: worse beside %d of %d servers%s", subject, k.Workload, k.Measure, k.Figure, beyond, compared, text)}
}

func isWorse(was, is paired.Estimate, more bool) bool {
	if math.Abs(is.Median/was.Median-1) < least {
		return false
	}
	if more {
		return is.High < was.Low
	}
	return is.Low > was.High
}

// check holds the run against its limits and against the committed result.
func (b *bench) check() error {
	bad := b.exceeded()
	committed, err := load(filepath.Join(b.root, committedResult))
	if err != nil {
		return err
	}
	if bad = append(bad, b.worse(committed)...); len(bad) == 0 {
		return nil
	}
	why := "beyond its limit, or worse than the committed result"
	if b.Noise.busy() || committed.Noise.busy() {
		why += " (this machine or the one of the committed result was busy: measure again before you believe it)"
	}
	return errors.New(why + ":\n  " + strings.Join(bad, "\n  "))
}
