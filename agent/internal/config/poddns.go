package config

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/strict"
)

// ResolvConf has the keys about how pods' resolv.conf files may be changed.
type ResolvConf struct {
	Mode  string   // one of the conflist's ResolvConf constants
	Paths []string // patterns of the paths at which the runtime keeps a sandbox's resolv.conf; see sandbox.CheckPattern
	Host  string   // path of the node's resolv.conf that its kubelet uses
	NRI   string   // path of the runtime's NRI socket; "" for off
}

// podDNS returns the field podDNS, the DNS settings for pods. Package overlay decodes its keys.
func podDNS(name string, reload bool) field {
	return field{name: name, reload: reload,
		set: func(d *decoder, v strict.Value) {
			whole := len(d.Faults())
			v = d.plain(v)
			if len(d.Faults()) > whole {
				return
			}
			var r strict.Reader
			rules := overlay.Read(&r, v)
			for _, f := range r.Faults() {
				d.Add(f)
			}
			// An unknown key may belong to a later release, and has no effect. But one within a list of options disables all of podDNS.
			if !slices.ContainsFunc(r.Faults(), func(f *strict.Fault) bool { return !f.Unknown || strings.Contains(f.Field, "[") }) {
				d.node.PodDNS, d.node.podDNS = rules, v
			}
		},
		show: func(n *Node) any {
			if n.PodDNS.IsZero() {
				return nil
			}
			return showRules(n.PodDNS)
		}}
}

// Warnings returns effects of podDNS on a typical pod that are probably not intended, each with its position. They are no faults.
func (n *Node) Warnings() []string {
	var out []string
	for _, w := range overlay.Warnings(n.podDNS, n.PodDNS, n.ClusterDNS(), n.ClusterDomain) {
		out = append(out, w.Error())
	}
	return out
}

// plain returns v as a value that JSON can represent, with ${NAME} replaced. Each member gets the position of its key, so faults that are
// found later are reported there.
func (d *decoder) plain(v strict.Value) strict.Value {
	switch v.Kind {
	case strict.Object:
		members := d.Plain(v)
		for i, m := range members {
			members[i].Value = d.plain(m.Value)
			members[i].Value.Place = m.Name
		}
		out := strict.ObjectOf(v.Place, members)
		out.Field = v.Field
		return out
	case strict.List:
		items := v.Items()
		for i, item := range items {
			items[i] = d.plain(item)
		}
		out := strict.ListOf(v.Place, items)
		out.Field = v.Field
		return out
	case strict.String, strict.Other:
		v.Text, _ = d.TextOf(v, "text, a number, true or false")
	}
	return v
}

// showRules returns the rules in the form of the file: their JSON has the same keys, and JSON is valid YAML.
func showRules(r overlay.Rules) any {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts and booleans only
	}
	var out yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(text, &out, yaml.UseOrderedMap()); err != nil {
		panic(err)
	}
	return out
}

func parsePattern(s string) (string, error) { return s, sandbox.CheckPattern(s) }
