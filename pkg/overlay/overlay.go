// Package overlay reads the DNS settings that the operator (podDNS in NodeConfig, dns in the conflist entry) and a pod's owner
// (annotations) want for a pod, and applies them in order of precedence to the settings that the runtime gives the pod.
//
// It is pure: its callers read and write the files. It keeps no state.
//
// On failure: the faults in the operator's rules are reported together, at most eight for each overlay. A pod never fails because of the
// settings wanted for it: a setting that cannot be read or applied is left out and returned as podfile.Ignored, and the others apply.
package overlay

import (
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// The annotations of a pod that neardns reads.
const (
	AnnotationSteer      = "neardns.io/steer"
	AnnotationParams     = "neardns.io/dns-params"
	AnnotationKernelHits = "neardns.io/kernel-hits"
)

// Level has the operator's rules for all pods, or for the pods of one namespace.
type Level struct {
	resolvconf.Overlay
	// Annotations is Honour or Ignore. In a namespace, "" means the value for all pods, where "" means Honour.
	Annotations string `json:"annotations,omitempty"`
}

// Rules are the operator's rules. The zero value changes no settings and lets annotations take effect. Their JSON has the form that Read
// reads, and equal rules give equal bytes.
type Rules struct {
	Level
	Namespaces map[string]Level `json:"namespaces,omitempty"` // namespace name → its level, which overrides the level for all pods
}

// Values of the key "annotations": pods' annotations take effect, or not.
const (
	Honour = "honour"
	Ignore = "ignore"
)

// Keys of a Level that do not belong to its overlay. The second is allowed only in the Level for all pods.
const (
	keyAnnotations = "annotations"
	keyNamespaces  = "namespaces"
)

// Read reads the operator's rules from v and adds the faults to r. If the only faults are unknown keys, the result has all other
// keys.
func Read(r *strict.Reader, v strict.Value) Rules {
	var rules Rules
	own := level(r, v, &rules.Level, true)
	if spaces, ok := own[keyNamespaces]; ok {
		for _, m := range r.Plain(spaces) {
			if !strict.IsLabel(m.Key) {
				r.Fault(spaces, "%s is not the name of a namespace", strict.Quote(m.Key))
				continue
			}
			var l Level
			level(r, m.Value, &l, false)
			if rules.Namespaces == nil {
				rules.Namespaces = map[string]Level{}
			}
			rules.Namespaces[m.Key] = l
		}
	}
	return rules
}

// level reads one Level into l, and returns the values of the keys that do not belong to its overlay. whole means the Level for all
// pods.
func level(r *strict.Reader, v strict.Value, l *Level, whole bool) map[string]strict.Value {
	own := map[string]strict.Value{}
	var rest []strict.Member
	for _, m := range r.Members(v) {
		switch m.Key {
		case keyNamespaces:
			if !whole {
				r.Fault(m.Value, "is for all pods only: take it out here")
			}
		case keyAnnotations:
		case "policy", "nameservers", "search", "searches", "options":
			rest = append(rest, m)
			continue
		default:
			keys := []string{"policy", "nameservers", "searches", "options", keyAnnotations}
			if whole {
				keys = append(keys, keyNamespaces)
			}
			r.Unknown(m, keys...)
		}
		own[m.Key] = m.Value
	}
	if a, ok := own[keyAnnotations]; ok {
		if l.Annotations, ok = r.Text(a); ok {
			r.OneOf(a, l.Annotations, Honour, Ignore)
		}
	}
	l.Overlay = resolvconf.ReadOverlay(r, rest)
	return own
}

// IsZero reports whether the rules are the default, which changes no settings.
func (r Rules) IsZero() bool {
	return r.Level.isZero() && len(r.Namespaces) == 0
}

func (l Level) isZero() bool {
	return l.Annotations == "" && isEmpty(l.Overlay)
}

// isEmpty reports whether an overlay changes nothing.
func isEmpty(o resolvconf.Overlay) bool {
	return !(o.Policy != "" || len(o.Nameservers)+len(o.Searches)+len(o.Options)+len(o.Instead) > 0)
}

// Overlays reports whether the rules change the settings of some pod that has no annotation.
func (r Rules) Overlays() bool {
	return !isEmpty(r.Overlay) ||
		slices.ContainsFunc(slices.Collect(maps.Values(r.Namespaces)), func(l Level) bool { return !isEmpty(l.Overlay) })
}
