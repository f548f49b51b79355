package main

import (
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// lineMap has the line at which each value of a JSON file begins, by its path, for example plugins[1].redirects[0].
type lineMap map[string]int

// of returns the line of a field for error messages. If the file does not have the field, it is the line of the nearest
// enclosing field.
func (m lineMap) of(field string) int {
	for field != "" {
		if line, ok := m[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 1
}

// locate records the line of v and of every value inside it. It returns a fault for each duplicate key, because JSON parsers
// differ in which of the two values they use.
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
