package main

import (
	"fmt"
	"strings"
)

// diffContext is the number of unchanged lines that diff shows around a change.
const diffContext = 3

// diff returns a unified diff with a single hunk, which reaches from the first to the last changed line. It is empty if before and after
// have the same lines.
func diff(from, to string, before, after []byte) string {
	a, b := lines(before), lines(after)
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	if head == len(a) && head == len(b) {
		return ""
	}
	start := max(head-diffContext, 0)
	endA, endB := min(len(a)-tail+diffContext, len(a)), min(len(b)-tail+diffContext, len(b))
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n@@ -%d,%d +%d,%d @@\n", from, to, start+1, endA-start, start+1, endB-start)
	put := func(mark string, some []string) {
		for _, line := range some {
			out.WriteString(mark + line + "\n")
		}
	}
	put(" ", a[start:head])
	put("-", a[head:len(a)-tail])
	put("+", b[head:len(b)-tail])
	put(" ", a[len(a)-tail:endA])
	return out.String()
}

func lines(text []byte) []string {
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
