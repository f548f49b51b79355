package main

import (
	"regexp"
	"slices"
)

// close prints the summary and reports whether the run passed. A test with subtests counts through them.
func (r *report) close(allowed []*regexp.Regexp, ci bool) bool {
	passed, failed, unexpected := 0, r.failures, 0
	var failures, skips, quarantined []string
	for _, t := range r.order {
		switch {
		case t.result == "fail":
			if why, ok := r.quarantined[short(t.pkg)+" "+top(t.name)]; ok && !t.unended {
				quarantined = append(quarantined, short(t.pkg)+" "+t.name+": "+why)
			} else if !t.parent || t.itself || !r.failedBelow(t) {
				failed++
				failures = append(failures, short(t.pkg)+" "+t.name)
			}
		case t.result == "skip":
			line := short(t.pkg) + " " + t.name + ": " + reason(t.output)
			if ci && !slices.ContainsFunc(allowed, func(a *regexp.Regexp) bool { return a.MatchString(line) }) {
				unexpected++
				line += "   <- not on the list of allowed skips"
			}
			skips = append(skips, line)
		case t.result == "pass" && !t.parent:
			passed++
		}
	}
	slices.Sort(skips)
	for _, s := range skips {
		r.printf("skipped  %s\n", s)
	}
	for _, q := range quarantined {
		r.printf("failed in quarantine %s\n", q)
	}
	for _, f := range failures {
		r.printf("failed   %s\n", f)
	}
	if unexpected > 0 {
		r.printf("%d tests were skipped here that must run in CI\n", unexpected)
	}
	if passed+failed+len(skips) == 0 {
		r.printf("no tests found\n")
	}
	r.printf("%d passed, %d failed, %d skipped\n", passed, failed, len(skips))
	return failed == 0 && unexpected == 0 && passed > 0
}
