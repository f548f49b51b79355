package main

import (
	"cmp"
	"slices"
	"strings"
)

// longest prints the n tests that took longest, those without a parent: what to look at when a check has grown slow.
func (r *report) longest(n int) {
	var all []*test
	for _, t := range r.order {
		if !strings.Contains(t.name, "/") && t.seconds > 0 {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b *test) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range all[:min(n, len(all))] {
		r.printf("long     %s %s (%.1fs)\n", short(t.pkg), t.name, t.seconds)
	}
}

func (r *report) failedBelow(parent *test) bool {
	return slices.ContainsFunc(r.order, func(t *test) bool {
		return t.pkg == parent.pkg && t.result == "fail" && strings.HasPrefix(t.name, parent.name+"/")
	})
}
