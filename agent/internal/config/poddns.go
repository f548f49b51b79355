package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
)

// ResolvConf says how pods' own resolv.conf files may be changed.
type ResolvConf struct {
	Mode  string   // one of the conflist's ResolvConf constants
	Paths []string // where the runtime keeps a sandbox's file, as sandbox.CheckPattern wants them
	Host  string   // the node's own file, as its kubelet uses it
	NRI   string   // the socket of the runtime's NRI; "" for off
}

// podDNS is the field that holds what is wanted of pods' DNS settings. pkg/overlay knows what may stand in it.
func podDNS(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			whole := len(d.faults)
			value := d.plain(name, v)
			if len(d.faults) > whole {
				return
			}
			rules, faults := d.rules(name, v, value)
			if drop(value, name, faults) {
				d.faults = append(d.faults, faults...)
				rules, faults = d.rules(name, v, value)
			}
			d.faults = append(d.faults, faults...)
			if len(faults) == 0 {
				d.node.PodDNS = *rules
			}
		},
		show: func(n *Node) any {
			if n.PodDNS.IsZero() {
				return nil
			}
			return showRules(n.PodDNS)
		}}
}

// rules reads what is wanted of pods out of a part of the file, or gives each fault its place.
func (d *decoder) rules(name string, v ast.Node, value any) (*overlay.Rules, []error) {
	text, err := json.Marshal(value)
	if err != nil {
		at := place(d.file, v)
		return nil, []error{&FaultError{File: at.file, Line: at.line, Column: at.column, Field: name, Message: err.Error()}}
	}
	rules, err := overlay.Decode(name, text)
	if err == nil {
		return rules, nil
	}
	var faults []error
	for line := range strings.Lines(err.Error()) {
		at, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		fault := d.node.fault(at, message)
		if f, ok := errors.AsType[*FaultError](fault); ok {
			f.unknown = strings.HasPrefix(message, "unknown key: ")
		}
		faults = append(faults, fault)
	}
	return nil, faults
}

// drop takes the keys that the faults name out of value, and reports whether nothing but unknown keys was wrong with it. A key
// within a list, of an option, is no key that a later release may have added.
func drop(value any, name string, faults []error) bool {
	for _, err := range faults {
		f, ok := errors.AsType[*FaultError](err)
		if !ok || !f.unknown || strings.Contains(f.Field, "[") {
			return false
		}
	}
	for _, err := range faults {
		f, _ := errors.AsType[*FaultError](err)
		m, _ := value.(map[string]any)
		steps := strings.Split(strings.TrimPrefix(f.Field, name+"."), ".")
		for _, s := range steps[:len(steps)-1] {
			m, _ = m[s].(map[string]any)
		}
		delete(m, steps[len(steps)-1])
	}
	return len(faults) > 0
}

// plain turns a node of the YAML into what encoding/json takes.
func (d *decoder) plain(name string, v ast.Node) any {
	if v == nil {
		return nil
	}
	if _, ok := d.node.at[name]; !ok {
		d.node.at[name] = place(d.file, v)
	}
	switch x := v.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		out := map[string]any{}
		for _, p := range d.pairs(name, v) {
			at := join(name, p.key)
			d.node.at[at] = place(d.file, p.name)
			out[p.key] = d.plain(at, p.value)
		}
		return out
	case *ast.SequenceNode:
		out := []any{}
		for i, e := range x.Values {
			out = append(out, d.plain(fmt.Sprintf("%s[%d]", name, i), e))
		}
		return out
	case *ast.BoolNode:
		return x.Value
	case *ast.IntegerNode:
		return x.Value
	case *ast.FloatNode:
		return x.Value
	case *ast.NullNode:
		return nil
	}
	s, _ := d.text(name, v, "text, a number, true or false")
	return s
}

// showRules gives rules as the file has them.
func showRules(r overlay.Rules) yaml.MapSlice {
	out := showLevel(r.Level)
	if r.Limits != "" {
		out = append(out, yaml.MapItem{Key: "limits", Value: string(r.Limits)})
	}
	if r.Excess == resolvconf.Refuse {
		out = append(out, yaml.MapItem{Key: "excess", Value: "refuse"})
	}
	if len(r.Namespaces) > 0 {
		spaces := yaml.MapSlice{}
		for _, name := range sortedKeys(r.Namespaces) {
			spaces = append(spaces, yaml.MapItem{Key: name, Value: showLevel(r.Namespaces[name])})
		}
		out = append(out, yaml.MapItem{Key: "namespaces", Value: spaces})
	}
	return out
}

func showLevel(l overlay.Level) yaml.MapSlice {
	out := yaml.MapSlice{}
	if l.Policy != "" {
		out = append(out, yaml.MapItem{Key: "policy", Value: string(l.Policy)})
	}
	for _, p := range []struct {
		key   string
		words []string
	}{{"nameservers", l.Nameservers}, {"searches", l.Searches}, {"options", l.Options}} {
		if len(p.words) > 0 {
			out = append(out, yaml.MapItem{Key: p.key, Value: p.words})
		}
	}
	if l.SearchCompletion != nil {
		out = append(out, yaml.MapItem{Key: "searchCompletion", Value: *l.SearchCompletion})
	}
	if l.Annotations != nil {
		value := "ignore"
		if *l.Annotations {
			value = "honour"
		}
		out = append(out, yaml.MapItem{Key: "annotations", Value: value})
	}
	return out
}

// nri is the field of the socket's path, or off.
func nri(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, name string, v ast.Node) {
			s, ok := d.text(name, v, "a path, or off")
			if !ok {
				return
			}
			if s == "off" {
				d.node.ResolvConf.NRI = ""
				return
			}
			path, err := parsePath(s)
			if err != nil {
				d.fail(v, name, "%v; off turns it off", err)
			}
			d.node.ResolvConf.NRI = path
		},
		show: func(n *Node) any {
			if n.ResolvConf.NRI == "" {
				return "off"
			}
			return n.ResolvConf.NRI
		}}
}

func parsePattern(s string) (string, error) { return s, sandbox.CheckPattern(s) }
