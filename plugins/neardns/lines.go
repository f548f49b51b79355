package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// lineMap knows on which line each value of a file begins, by paths like plugins[1].redirects[0].
type lineMap map[string]int

// of finds the line of a field, or of the nearest thing around it that exists.
func (m lineMap) of(field string) int {
	for field != "" {
		if line, ok := m[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 1
}

// locate walks a JSON text once and notes where its values are.
func locate(data []byte) (lineMap, error) {
	m := lineMap{}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := m.walk(d, data, ""); errors.Is(err, io.EOF) {
		return nil, &placeError{int64(len(data)), "the text ends too early"}
	} else if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &placeError{d.InputOffset(), "something follows the end of the list: take it out"}
	}
	return m, nil
}

func (m lineMap) walk(d *json.Decoder, data []byte, path string) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	// The decoder stands behind the token; for what opens a value that is on its first line, for the rest on its only one.
	if m[path] == 0 {
		m[path] = lineAt(data, d.InputOffset())
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	for i := 0; d.More(); i++ {
		sub := fmt.Sprintf("%s[%d]", path, i)
		if open == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			sub = strings.TrimPrefix(fmt.Sprintf("%s.%v", path, key), ".")
			if m[sub] != 0 {
				return &placeError{d.InputOffset(), fmt.Sprintf("key %q stands twice: keep one", key)}
			}
			m[sub] = lineAt(data, d.InputOffset())
		}
		if err := m.walk(d, data, sub); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(int(offset), 0), len(data))], []byte("\n"))
}

// placeError is a fault of the text itself.
type placeError struct {
	offset int64
	msg    string
}

func (e *placeError) Error() string { return e.msg }

// errorOffset finds where a JSON error is; an unexpected end is at the end.
func errorOffset(err error, size int) int64 {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Offset
	}
	var place *placeError
	if errors.As(err, &place) {
		return place.offset
	}
	return int64(size)
}
