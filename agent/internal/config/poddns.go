package config

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/strict"
)

// ResolvConf is how pods' own resolv.conf files may be changed.
type ResolvConf struct {
	Mode  string   // one of the conflist's ResolvConf constants
	Paths []string // where the runtime keeps a sandbox's file, as sandbox.CheckPattern wants them
	Host  string   // the node's own file, as its kubelet uses it
	NRI   string   // the socket of the runtime's NRI; "" for off
}

// podDNS is the field for pods' DNS settings. pkg/overlay reads its keys.
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
			// A key within a list, of an option, is no key that a later release may have added.
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

// Warnings are about settings that no pod, or no usual one, can have: each with its place. They are no faults.
func (n *Node) Warnings() []string {
	var clusterDNS []netip.Addr
	for _, r := range n.Redirects {
		clusterDNS = append(clusterDNS, r.ClusterDNS)
	}
	var out []string
	for _, w := range overlay.Warnings(n.podDNS, n.PodDNS, clusterDNS, n.ClusterDomain) {
		out = append(out, w.Error())
	}
	return out
}

// plain returns v as JSON could have it: with ${NAME} replaced, and without what only YAML has. A fault of a member is where its key is.
func (d *decoder) plain(v strict.Value) strict.Value {
	switch v.Kind {
	case strict.Object:
		members := d.pairs(v)
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
		v.Text, _ = d.text(v, "text, a number, true or false")
	}
	return v
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
	if r.Unknown != "" {
		out = append(out, yaml.MapItem{Key: "unknownOptions", Value: string(r.Unknown)})
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
		set: func(d *decoder, v strict.Value) {
			s, ok := d.text(v, "a path, or off")
			if !ok {
				return
			}
			if s == "off" {
				d.node.ResolvConf.NRI = ""
				return
			}
			path, err := configfile.ParsePath(s)
			if err != nil {
				d.fail(v, "%v; off turns it off", err)
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
