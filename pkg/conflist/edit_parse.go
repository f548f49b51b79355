package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// span has the start and end offset of a JSON value in a text.
type span struct{ start, end int }

func (s span) text(of []byte) []byte { return of[s.start:s.end] }

// member is one key of a JSON object, with the position of its value.
type member struct {
	key string
	span
}

type object []member

// find returns the position of key's value, or nil. Case counts, because runtimes read the keys of a list into a map.
func (o object) find(key string) *span {
	for i := range o {
		if o[i].key == key {
			return &o[i].span
		}
	}
	return nil
}

// parse reads a list as the runtimes do. It refuses a text that runtimes read in different ways, because an edit could change its
// meaning for some of them.
func parse(list []byte) (document, error) {
	var d document
	top, err := members(list)
	if err != nil {
		return d, err
	}
	if name := top.find("name"); name == nil {
		return d, errors.New(`has no "name": not a CNI configuration list`)
	} else if err := json.Unmarshal(name.text(list), &d.network.Name); err != nil || d.network.Name == "" {
		return d, fmt.Errorf("name: %s is not a network's name", name.text(list))
	}
	if d.network.CNIVersions, err = versions(top, list); err != nil {
		return d, err
	}
	plugins := top.find("plugins")
	if plugins == nil {
		if top.find("type") != nil {
			return d, errors.New(`has "type" and no "plugins", so it is a single plugin's configuration, which a runtime reads only from ` +
				`a file that ends in .conf or .json: rename it`)
		}
		return d, errors.New(`has no "plugins": nothing to chain to`)
	}
	if d.plugins, d.open, err = elements(list, *plugins); err != nil {
		return d, fmt.Errorf("plugins: %w", err)
	}
	if len(d.plugins) == 0 {
		return d, errors.New("plugins: empty: nothing to chain to")
	}
	for i, p := range d.plugins {
		t, err := typeOf(p.text(list))
		if err != nil {
			return d, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		d.network.Types = append(d.network.Types, t)
	}
	return d, nil
}

// versions returns all CNI versions that a list declares, in cniVersion and in cniVersions (a list of versions, since CNI 1.1).
func versions(top object, list []byte) ([]string, error) {
	var all []string
	if v := top.find("cniVersion"); v != nil {
		var one string
		if err := json.Unmarshal(v.text(list), &one); err != nil {
			return nil, fmt.Errorf("cniVersion: %s is not a string", v.text(list))
		}
		if one != "" {
			all = append(all, one)
		}
	}
	if v := top.find("cniVersions"); v != nil {
		var more []string
		if err := json.Unmarshal(v.text(list), &more); err != nil {
			return nil, fmt.Errorf("cniVersions: %s is not a list of strings", v.text(list))
		}
		all = append(all, more...)
	}
	return all, nil
}

// typeOf returns a plugin's type. The case of the key "type" does not count, because runtimes decode a plugin's configuration into
// a struct, and encoding/json then ignores case.
func typeOf(plugin []byte) (string, error) {
	var p struct{ Type string }
	if len(plugin) == 0 || plugin[0] != '{' {
		return "", errors.New("not an object")
	}
	if err := json.Unmarshal(plugin, &p); err != nil {
		return "", describe(err, plugin)
	}
	if p.Type == "" {
		return "", errors.New(`has no "type"`)
	}
	return p.Type, nil
}

// members returns the keys of a JSON object with the positions of their values. It is an error if text is anything but one object.
func members(text []byte) (object, error) {
	switch t := bytes.TrimSpace(text); {
	case len(t) == 0:
		return nil, errors.New("empty")
	case bytes.HasPrefix(t, []byte("\xef\xbb\xbf")):
		return nil, errors.New("begins with a byte order mark, which runtimes do not read: save it without")
	case t[0] != '{':
		return nil, errors.New("not a JSON object")
	}
	// Unmarshal the whole text first. The token decoder below accepts some texts that a runtime refuses, for example one with text
	// after the object.
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, describe(err, text)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return nil, describe(err, text)
	}
	var out object
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, describe(err, text)
		}
		name, _ := key.(string)
		value, err := next(dec)
		if err != nil {
			return nil, describe(err, text)
		}
		if out.find(name) != nil {
			return nil, fmt.Errorf("key %q is there twice: readers differ in which one they take; remove one", name)
		}
		out = append(out, member{name, value})
	}
	return out, nil
}

// elements returns the positions of an array's elements in text, and the offset after the array's opening bracket.
func elements(text []byte, array span) ([]span, int, error) {
	raw := array.text(text)
	if len(raw) == 0 || raw[0] != '[' {
		return nil, 0, errors.New("not a list")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return nil, 0, describe(err, raw)
	}
	open := array.start + int(dec.InputOffset())
	var out []span
	for dec.More() {
		s, err := next(dec)
		if err != nil {
			return nil, 0, describe(err, raw)
		}
		out = append(out, span{array.start + s.start, array.start + s.end})
	}
	return out, open, nil
}

// next decodes one JSON value and returns its position in the decoder's input.
func next(dec *json.Decoder) (span, error) {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return span{}, err
	}
	end := int(dec.InputOffset())
	return span{end - len(raw), end}, nil
}

// describe makes an error of encoding/json readable. To a syntax error it adds the line and column in text.
func describe(err error, text []byte) error {
	var syntax *json.SyntaxError
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("not valid JSON: ends in the middle")
	}
	if !errors.As(err, &syntax) {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	at := min(max(int(syntax.Offset)-1, 0), len(text))
	line := 1 + bytes.Count(text[:at], []byte("\n"))
	column := at - bytes.LastIndexByte(text[:at], '\n')
	return fmt.Errorf("not valid JSON: line %d, column %d: %s", line, column, strings.TrimPrefix(syntax.Error(), "json: "))
}
