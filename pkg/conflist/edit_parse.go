package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/neardns/neardns/pkg/strict"
)

// parse reads a list as the runtimes do. It refuses a text that runtimes read in different ways, because an edit could change its
// meaning for some of them.
func parse(list []byte) (document, error) {
	var d document
	top, err := object(list)
	if err != nil {
		return d, err
	}
	name, ok := top["name"]
	if !ok {
		return d, errors.New(`has no "name": not a CNI configuration list`)
	}
	if d.network.Name = name.Text; name.Kind != strict.String {
		return d, fmt.Errorf("name: is %s, and no network's name", name.Kind)
	} else if name.Text == "" {
		return d, errors.New(`name: "" is not a network's name`)
	}
	if d.network.CNIVersions, err = versions(top); err != nil {
		return d, err
	}
	plugins, ok := top["plugins"]
	if _, single := top["type"]; !ok && single {
		return d, errors.New(`has "type" and no "plugins", so it is a single plugin's configuration, which a runtime reads only from ` +
			`a file that ends in .conf or .json: rename it`)
	}
	if !ok {
		return d, errors.New(`has no "plugins": nothing to chain to`)
	}
	if plugins.Kind != strict.List {
		return d, errors.New("plugins: not a list")
	}
	d.plugins, d.open = plugins.Items(), plugins.Start()+1
	if len(d.plugins) == 0 {
		return d, errors.New("plugins: empty: nothing to chain to")
	}
	for _, p := range d.plugins {
		t, err := typeOf(p.Raw())
		if err != nil {
			return d, fmt.Errorf("%s: %w", p.Field, err)
		}
		d.network.Types = append(d.network.Types, t)
	}
	return d, nil
}

// versions returns all CNI versions that a list declares, in cniVersion and in cniVersions (a list of versions, since CNI 1.1).
func versions(top map[string]strict.Value) ([]string, error) {
	var one string
	var all []string
	if v, ok := top["cniVersion"]; ok && json.Unmarshal(v.Raw(), &one) != nil {
		return nil, fmt.Errorf("cniVersion: is %s: write a string, in quotes", v.Kind)
	}
	if v, ok := top["cniVersions"]; ok && json.Unmarshal(v.Raw(), &all) != nil {
		return nil, errors.New(`cniVersions: is no list of strings: write it like ["1.0.0", "1.1.0"]`)
	}
	if one != "" {
		all = append([]string{one}, all...)
	}
	return all, nil
}

// typeOf returns a plugin's type. The case of the key "type" does not count, because runtimes decode a plugin's configuration into
// a struct, and encoding/json then ignores case.
func typeOf(plugin []byte) (string, error) {
	var p struct{ Type string }
	if plugin[0] != '{' {
		return "", errors.New("not an object")
	}
	if err := json.Unmarshal(plugin, &p); err != nil {
		return "", fmt.Errorf("not valid JSON: %w", err)
	}
	if p.Type == "" {
		return "", errors.New(`has no "type"`)
	}
	return p.Type, nil
}

// object returns the values of a JSON object by key. It returns an error if text is anything but one object. A key that is there twice is
// an error too, because readers differ in which one they take. The case of keys counts, because runtimes read a list into a map.
func object(text []byte) (map[string]strict.Value, error) {
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		return nil, errors.New("begins with a byte order mark, which runtimes do not read: save it without")
	}
	v, err := strict.JSON("", "", text)
	if err != nil {
		return nil, fmt.Errorf("not valid JSON: line %d: %w", strict.ErrorLine(text, err), err)
	}
	var r strict.Reader
	top := map[string]strict.Value{}
	for _, m := range r.Plain(v) {
		top[m.Key] = m.Value
	}
	if faults := r.Faults(); len(faults) > 0 { // the first alone: callers show one line
		return nil, faults[0]
	}
	return top, nil
}
