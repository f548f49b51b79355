// Package overlay says what an operator and a pod's owner want of a pod's DNS, and what a pod gets of it: it reads the key dns of
// the conflist and the annotations, and lays them over the pod's own settings in their order of precedence.
//
// It is pure: whoever calls it reads and writes the files. Nothing is kept or shared.
//
// Failure policy: the operator's rules are read strictly, all of them or an error. A pod never fails for what its owner or the
// operator wrote for it: what cannot be read or had is left out, alone, and named as podfile.Ignored.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// Annotations of a pod that are read.
const (
	AnnotationSteer      = "neardns.io/steer"
	AnnotationParams     = "neardns.io/dns-params"
	AnnotationCompletion = "neardns.io/search-completion"
)

// Level is what one who may say something says: the operator for all pods or for those of a namespace.
type Level struct {
	resolvconf.Overlay
	// SearchCompletion is what is wanted of the agent for these pods, which reads it itself; nil leaves it to the level below.
	SearchCompletion *bool
	// Annotations tells whether these pods' annotations are heeded; nil leaves it to the level below, which heeds them.
	Annotations *bool
}

// Rules are what the operator wants. The zero value wants nothing and heeds annotations.
type Rules struct {
	Level
	Namespaces map[string]Level   // by name; laid over what is for all pods
	Limits     resolvconf.Profile // "" is resolvconf.Kubernetes
	Excess     resolvconf.Excess
}

// Values of the keys "annotations" and "excess".
const (
	honour   = "honour"
	ignore   = "ignore"
	truncate = "truncate"
	refuse   = "refuse"
)

// keys of a level besides those of an overlay, and those that stand for all pods only.
const (
	keyCompletion  = "searchCompletion"
	keyAnnotations = "annotations"
	keyNamespaces  = "namespaces"
	keyLimits      = "limits"
	keyExcess      = "excess"
)

// Decode reads rules from JSON, strictly and with all faults at once: one error a line, each beginning with the field's path.
// field is what the rules are called where they stand, such as "dns".
func Decode(field string, data []byte) (*Rules, error) {
	d := &decoder{}
	r := &Rules{}
	own := d.level(field, data, &r.Level, true)
	if raw, ok := own[keyLimits]; ok {
		name := d.text(field+"."+keyLimits, raw)
		var err error
		if r.Limits, err = resolvconf.ParseProfile(name); err != nil {
			d.fault(field+"."+keyLimits, "%v", err)
		}
	}
	if raw, ok := own[keyExcess]; ok {
		r.Excess = resolvconf.Truncate
		if d.oneOf(field+"."+keyExcess, raw, truncate, refuse) == refuse {
			r.Excess = resolvconf.Refuse
		}
	}
	if raw, ok := own[keyNamespaces]; ok {
		var levels map[string]json.RawMessage
		if err := json.Unmarshal(raw, &levels); err != nil || levels == nil {
			d.fault(field+"."+keyNamespaces, `not an object: write it like {"shop": {"options": ["ndots:1"]}}`)
		}
		for _, name := range slices.Sorted(maps.Keys(levels)) {
			at := field + "." + keyNamespaces + "." + name
			if !isNamespace(name) {
				d.fault(field+"."+keyNamespaces, "%q is not the name of a namespace", clip(name))
				continue
			}
			var l Level
			d.level(at, levels[name], &l, false)
			if r.Namespaces == nil {
				r.Namespaces = map[string]Level{}
			}
			r.Namespaces[name] = l
		}
	}
	if len(d.faults) > 0 {
		return nil, errors.Join(d.faults...)
	}
	return r, nil
}

type decoder struct{ faults []error }

func (d *decoder) fault(field, format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// level reads one level and returns the keys of it that are not an overlay's.
func (d *decoder) level(field string, data []byte, l *Level, whole bool) map[string]json.RawMessage {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil || members == nil {
		d.fault(field, `not an object: write it like {"options": ["ndots:2"]}`)
		return nil
	}
	own := map[string]json.RawMessage{}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		raw := members[key]
		switch key {
		case keyNamespaces, keyLimits, keyExcess:
			if !whole {
				d.fault(field+"."+key, "stands for all pods only: take it out here")
			}
		case keyCompletion, keyAnnotations:
		case "policy", "nameservers", "search", "searches", "options":
			continue
		default:
			d.fault(field+"."+clip(key), "unknown key: %s", suggest(key, whole))
		}
		own[key] = raw
		delete(members, key)
	}
	if raw, ok := own[keyCompletion]; ok {
		var b *bool
		if err := json.Unmarshal(raw, &b); err != nil || b == nil {
			d.fault(field+"."+keyCompletion, "%s: write true or false, without quotes", clip(string(raw)))
		}
		l.SearchCompletion = b
	}
	if raw, ok := own[keyAnnotations]; ok {
		heed := d.oneOf(field+"."+keyAnnotations, raw, honour, ignore) != ignore
		l.Annotations = &heed
	}
	rest, err := json.Marshal(members)
	if err == nil {
		var o *resolvconf.Overlay
		if o, err = resolvconf.DecodeOverlay(field, rest); err == nil {
			l.Overlay = *o
		}
	}
	if err != nil {
		d.faults = append(d.faults, err)
	}
	return own
}

// suggest names the key that was probably meant.
func suggest(key string, whole bool) string {
	keys := []string{"policy", "nameservers", "searches", "options", keyCompletion, keyAnnotations}
	if whole {
		keys = append(keys, keyNamespaces, keyLimits, keyExcess)
	}
	plain := func(s string) string {
		return strings.TrimRight(strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)), "es")
	}
	for _, k := range keys {
		if plain(key) == plain(k) {
			return fmt.Sprintf("write %q", k)
		}
	}
	return "take it out, or use one of " + strings.Join(keys, ", ")
}

func (d *decoder) text(field string, raw json.RawMessage) string {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		d.fault(field, "%s: a string is wanted", clip(string(raw)))
		return ""
	}
	return *s
}

func (d *decoder) oneOf(field string, raw json.RawMessage, values ...string) string {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || !slices.Contains(values, s) {
		d.fault(field, "%s is not known: write one of %s", clip(string(raw)), strings.Join(values, ", "))
	}
	return s
}

// isNamespace accepts what Kubernetes does (RFC 1123, one label).
func isNamespace(s string) bool {
	return s != "" && len(s) <= 63 && s[0] != '-' && s[len(s)-1] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// clip keeps a message short whatever was written.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// MarshalJSON writes rules as Decode reads them, equal ones with equal bytes.
func (r Rules) MarshalJSON() ([]byte, error) {
	out := struct {
		level
		Limits     resolvconf.Profile `json:"limits,omitempty"`
		Excess     string             `json:"excess,omitempty"`
		Namespaces map[string]level   `json:"namespaces,omitempty"`
	}{level: r.json(), Limits: r.Limits}
	if r.Excess == resolvconf.Refuse {
		out.Excess = refuse
	}
	for name, l := range r.Namespaces {
		if out.Namespaces == nil {
			out.Namespaces = map[string]level{}
		}
		out.Namespaces[name] = l.json()
	}
	return json.Marshal(out)
}

// level is a Level's JSON.
type level struct {
	resolvconf.Overlay
	SearchCompletion *bool  `json:"searchCompletion,omitempty"`
	Annotations      string `json:"annotations,omitempty"`
}

func (l Level) json() level {
	out := level{Overlay: l.Overlay, SearchCompletion: l.SearchCompletion}
	if l.Annotations != nil {
		if out.Annotations = ignore; *l.Annotations {
			out.Annotations = honour
		}
	}
	return out
}

// IsZero tells whether rules want nothing that is not the default.
func (r Rules) IsZero() bool {
	return r.Level.isZero() && len(r.Namespaces) == 0 && r.Limits == "" && r.Excess == resolvconf.Truncate
}

func (l Level) isZero() bool {
	return l.SearchCompletion == nil && l.Annotations == nil && !says(l.Overlay)
}

// says tells whether an overlay has anything in it.
func says(o resolvconf.Overlay) bool {
	return o.Policy != "" || len(o.Nameservers)+len(o.Searches)+len(o.Options) > 0
}

// Completion tells whether the agent may complete searches for the pods of a namespace that say nothing about it themselves.
func (r Rules) Completion(namespace string) bool {
	said := r.SearchCompletion
	if own := r.Namespaces[namespace].SearchCompletion; own != nil {
		said = own
	}
	return said != nil && *said
}

// Laid returns the part of the rules that is laid at ADD: all but SearchCompletion, which the agent reads as it is now.
func (r Rules) Laid() Rules {
	out := r
	out.SearchCompletion, out.Namespaces = nil, nil
	for name, l := range r.Namespaces {
		if l.SearchCompletion = nil; l.isZero() {
			continue
		}
		if out.Namespaces == nil {
			out.Namespaces = map[string]Level{}
		}
		out.Namespaces[name] = l
	}
	return out
}

// Overlays tells whether the rules change any pod's settings by themselves.
func (r Rules) Overlays() bool {
	return says(r.Overlay) || slices.ContainsFunc(slices.Collect(maps.Values(r.Namespaces)), func(l Level) bool { return says(l.Overlay) })
}
