package resolvconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// DecodeOverlay reads an overlay from JSON, strictly: an unknown key, a key twice, a value of the wrong kind or one that cannot
// stand in a resolv.conf is an error that names the field with its path. field is what the overlay is called where its
// author wrote it, such as "dns". All faults are told at once (the first eight), since each try may cost a round over all nodes.
//
//	{"policy": "None", "nameservers": ["10.96.0.10"], "searches": ["svc.cluster.local"],
//	 "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}
//
// Every key may be left out. "search" is another name of "searches"; a value may be an integer, an option also the word of a
// resolv.conf ("ndots:2").
func DecodeOverlay(field string, data []byte) (*Overlay, error) {
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			return nil, fmt.Errorf("%s: not JSON at byte %d: %w", name(field), syntax.Offset, err)
		}
		return nil, fmt.Errorf("%s: not JSON: %w", name(field), err)
	}
	d := decoder{}
	o := d.overlay(field, raw)
	if err := bounded(d.faults); err != nil {
		return nil, err
	}
	return &o, nil
}

// name stands for a document without a name of its own.
func name(field string) string {
	if field == "" {
		return "the overlay"
	}
	return field
}

// decoder collects what is wrong.
type decoder struct {
	faults []error
}

func (d *decoder) fault(field, format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf("%s: %s", name(field), fmt.Sprintf(format, args...)))
}

func (d *decoder) overlay(field string, raw json.RawMessage) Overlay {
	var o Overlay
	if kind(raw) == "a list" {
		// The likeliest slip in YAML, with more of its kind inside: tell of all of them.
		d.fault(field, "a list, but one object with nameservers, searches and options is wanted: take the brackets (in YAML the dash) away")
		for i, item := range d.items(field, raw) {
			if kind(item) == "an object" {
				d.overlay(fmt.Sprintf("%s[%d]", field, i), item)
			}
		}
		return o
	}
	var searchKey string
	for _, m := range d.members(field, raw) {
		at := join(field, m.key)
		switch m.key {
		case "policy":
			if text, ok := d.text(at, m.raw); ok {
				p, err := ParsePolicy(text)
				if err != nil {
					d.fault(at, "%v", err)
				}
				o.Policy = p
			}
		case "nameservers":
			o.Nameservers = d.nameservers(at, m.raw)
		case "search", "searches":
			if searchKey != "" {
				d.fault(at, "%s stands there already and means the same: write one of them", searchKey)
			}
			searchKey = m.key
			o.Searches = d.searches(at, m.raw)
		case "options":
			o.Options = d.options(at, m.raw)
		default:
			d.fault(at, "unknown key: %s", suggest(m.key, "nameservers", "searches", "options", "policy"))
		}
	}
	return o
}

func (d *decoder) nameservers(field string, raw json.RawMessage) []string {
	return d.texts(field, raw, func(at, text string) string {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			d.fault(at, "%s is not an IP address: write it without port, prefix, zone or name, like 10.96.0.10", quote(text))
			return text
		}
		return a.String() // so that one address is one word, however it was written
	})
}

func (d *decoder) searches(field string, raw json.RawMessage) []string {
	return d.texts(field, raw, func(at, text string) string {
		if !isSearch(text) {
			d.fault(at, "%s is not a domain: write it like svc.cluster.local", quote(text))
		}
		if text == "." {
			return text
		}
		return strings.TrimSuffix(text, ".") // the same as without, and not another one beside it
	})
}

// texts reads a list of strings through read, which returns the text to keep.
func (d *decoder) texts(field string, raw json.RawMessage, read func(at, text string) string) []string {
	var out []string
	for i, item := range d.items(field, raw) {
		at := fmt.Sprintf("%s[%d]", field, i)
		if text, ok := d.text(at, item); ok {
			out = append(out, read(at, text))
		}
	}
	return out
}

// options reads the objects of a list into words of a resolv.conf.
func (d *decoder) options(field string, raw json.RawMessage) []string {
	var out []string
	for i, item := range d.items(field, raw) {
		at := fmt.Sprintf("%s[%d]", field, i)
		if kind(item) == "a string" {
			out = append(out, d.option(at, item)...)
			continue
		}
		if kind(item) != "an object" {
			d.fault(at, `%s, but an object is wanted: write it like {"name": "ndots", "value": "2"}`, kind(item))
			continue
		}
		var option, value string
		named := false
		for _, m := range d.members(at, item) {
			switch m.key {
			case "name":
				named = true
				var ok bool
				if option, ok = d.text(at+".name", m.raw); ok && (!isWord(option) || strings.Contains(option, ":")) {
					d.fault(at+".name", "%s is not an option's name: write it without colon and white space, and the value beside it as value", quote(option))
				}
			case "value":
				value = d.value(at+".value", m.raw)
			default:
				d.fault(join(at, m.key), "unknown key: %s", suggest(m.key, "name", "value"))
			}
		}
		if !named {
			d.fault(at+".name", "missing: name and value of an option stand in one object (in YAML under one dash), or in one word in quotes, like ndots:2")
			continue
		}
		if value != "" {
			option += ":" + value
		}
		out = append(out, option)
	}
	return out
}

// option reads one written as in a resolv.conf.
func (d *decoder) option(field string, raw json.RawMessage) []string {
	word, ok := d.text(field, raw)
	name, value, _ := strings.Cut(word, ":")
	if ok && (name == "" || !isWord(word)) {
		d.fault(field, "%s is not an option: write it like ndots:2, without white space", quote(word))
		ok = false
	}
	if !ok {
		return nil
	}
	if value == "" {
		return []string{name}
	}
	return []string{word}
}

// value reads a string or an integer; null and "" are none.
func (d *decoder) value(field string, raw json.RawMessage) string {
	text := strings.TrimSpace(string(raw))
	switch kind(raw) {
	case "null":
		return ""
	case "a number":
		if strings.ContainsAny(text, ".eE") {
			d.fault(field, "%s is not an integer: write one, or put what is meant in quotes", quote(text))
		}
		return text
	}
	s, ok := d.text(field, raw)
	if ok && s != "" && !isWord(s) {
		d.fault(field, "%s cannot stand in a resolv.conf: it must be one word", quote(s))
	}
	return s
}

func (d *decoder) text(field string, raw json.RawMessage) (string, bool) {
	var s string
	if kind(raw) != "a string" {
		d.fault(field, "%s, but a string is wanted: put it in quotes", kind(raw))
		return "", false
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		d.fault(field, "%v", err)
		return "", false
	}
	return s, true
}

func (d *decoder) items(field string, raw json.RawMessage) []json.RawMessage {
	var out []json.RawMessage
	if kind(raw) != "a list" {
		d.fault(field, "%s, but a list is wanted: put it in brackets (in YAML behind a dash)", kind(raw))
		return nil
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		d.fault(field, "%v", err)
	}
	return out
}

// member is one key of an object.
type member struct {
	key string
	raw json.RawMessage
}

// maxKeys bounds an object's keys: no object here has more than a few, and each is compared with those before it. An
// annotation of 64 KiB with 8,000 keys cost ADD 0.9 s of CPU time.
const maxKeys = 64

// members reads an object in its own order. encoding/json would take the last of two equal keys without a word.
func (d *decoder) members(field string, raw json.RawMessage) []member {
	if kind(raw) != "an object" {
		d.fault(field, "%s, but an object is wanted", kind(raw))
		return nil
	}
	var out []member
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		d.fault(field, "%v", err)
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		var m member
		if err == nil {
			m.key, _ = key.(string) // the key of an object is a string in all of JSON
			err = dec.Decode(&m.raw)
		}
		if err != nil {
			d.fault(field, "%v", err)
			return out
		}
		if len(out) == maxKeys {
			d.fault(field, "more than %d keys: take out those that are not settings", maxKeys)
			return nil
		}
		if slices.ContainsFunc(out, func(o member) bool { return o.key == m.key }) {
			d.fault(join(field, m.key), "stands there twice: write it once")
		}
		out = append(out, m)
	}
	return out
}

// kind tells people what a value is.
func kind(raw json.RawMessage) string {
	switch c := bytes.TrimLeft(raw, " \t\r\n"); {
	case len(c) == 0:
		return "nothing"
	case c[0] == '{':
		return "an object"
	case c[0] == '[':
		return "a list"
	case c[0] == '"':
		return "a string"
	case c[0] == 't' || c[0] == 'f':
		return "a boolean"
	case c[0] == 'n':
		return "null"
	}
	return "a number"
}

// suggest names the key that was probably meant.
func suggest(key string, known ...string) string {
	plain := func(s string) string {
		return strings.TrimRight(strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)), "es")
	}
	for _, k := range known {
		if plain(key) == plain(k) {
			return fmt.Sprintf("write %q", k)
		}
	}
	return "take it out, or use one of " + strings.Join(known, ", ")
}
