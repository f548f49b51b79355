package main

import (
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// lineMap knows on which line each value of a file begins, by paths like plugins[1].redirects[0].
type lineMap map[string]int

// of returns the line of a field, for error messages; if the file lacks it, the line of the nearest field around it.
func (m lineMap) of(field string) int {
	for field != "" {
		if line, ok := m[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 1
}

// locate records the lines of v and of everything in it. It returns duplicate keys as faults, because JSON readers differ in which of the
// two they use.
func (m lineMap) locate(v strict.Value) (twice []*strict.Fault) {
	m[v.Field] = v.Place.Line
	for _, item := range v.Items() {
		twice = append(twice, m.locate(item)...)
	}
	for _, member := range v.Members() {
		if in := member.Value; m[in.Field] == 0 {
			twice = append(twice, m.locate(in)...)
		} else {
			twice = append(twice, &strict.Fault{Place: in.Place, Field: in.Field, Message: "duplicate key: keep one"})
		}
	}
	return twice
}
