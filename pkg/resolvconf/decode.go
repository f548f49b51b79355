package resolvconf

import (
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// ReadOverlay reads an overlay from the members of an object, for example of an annotation or of a level of the operator's rules, and adds
// its faults to r. A key that is unknown is a fault. So is a value of the wrong kind, and one that cannot stand in a resolv.conf.
//
//	{"policy": "None", "nameservers": ["10.96.0.10"], "searches": ["svc.cluster.local"],
//	 "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}
//
// Every key may be left out. "search" is another name of "searches". An option's value may be an integer, and an option may be
// written as in a resolv.conf ("ndots:2"). A nameserver may be the word "local", which needs no list if it is the only nameserver.
func ReadOverlay(r *strict.Reader, members []strict.Member) Overlay {
	d := decoder{r}
	var o Overlay
	var searchKey string
	for _, m := range members {
		switch m.Key {
		case "policy":
			if text, ok := d.Text(m.Value); ok {
				p, err := ParsePolicy(text)
				if err != nil {
					d.Fault(m.Value, "%v", err)
				}
				o.Policy = p
			}
		case "nameservers":
			o.Nameservers = d.nameservers(m.Value)
		case "search", "searches":
			if searchKey != "" {
				d.Fault(m.Value, "%s appears already and means the same: write one of them", searchKey)
			}
			searchKey = m.Key
			o.Searches = d.searches(m.Value)
		case "options":
			o.Options = d.options(m.Value)
		default:
			d.Unknown(m, "nameservers", "searches", "options", "policy")
		}
	}
	return o
}

// decoder reads an overlay and collects its faults.
type decoder struct{ *strict.Reader }

func (d decoder) nameservers(v strict.Value) []string {
	if v.Kind == strict.String && v.Text == Local { // the word Local needs no list around it
		return []string{Local}
	}
	if v.Kind == strict.String {
		d.Fault(v, "%q is not the word %s: write %[2]s, or a list of addresses in brackets", v.Text, Local)
		return nil
	}
	return d.Texts(v, func(item strict.Value, text string) string {
		if text == Local {
			return text
		}
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			d.Fault(item, "%s is not an IP address: write it without port, prefix, zone or name, like 10.96.0.10", strict.Quote(text))
			return text
		}
		return a.String() // in canonical form, so that equal addresses are equal strings
	})
}

func (d decoder) searches(v strict.Value) []string {
	return d.Texts(v, func(item strict.Value, text string) string {
		if !isSearch(text) {
			d.Fault(item, "%s is not a domain: write it like svc.cluster.local", strict.Quote(text))
		}
		if text == "." {
			return text
		}
		return strings.TrimSuffix(text, ".") // a search domain means the same with and without the final dot
	})
}

// options reads a list of options, and returns them as words of a resolv.conf, for example ndots:2.
func (d decoder) options(v strict.Value) []string {
	var out []string
	for _, item := range d.Items(v) {
		if item.Kind == strict.String {
			out = append(out, d.option(item)...)
			continue
		}
		if item.Kind != strict.Object {
			d.Mismatch(item, `{"name": "ndots", "value": "2"}`)
			continue
		}
		var option, value string
		named := false
		for _, m := range d.Members(item) {
			switch m.Key {
			case "name":
				named = true
				var ok bool
				if option, ok = d.Text(m.Value); ok && (!strict.IsWord(option) || strings.Contains(option, ":")) {
					d.Fault(m.Value, "%s is not an option's name: write it without colon and white space, and the value beside it as value",
						strict.Quote(option))
				}
			case "value":
				value = d.value(m.Value)
			default:
				d.Unknown(m, "name", "value")
			}
		}
		if !named {
			d.Fault(item.At("name"), "missing: name and value of an option stand in one object (in YAML under one dash), or in one word in "+
				"quotes, like ndots:2")
			continue
		}
		if value != "" {
			option += ":" + value
		}
		out = append(out, option)
	}
	return out
}

// option reads an option that is written as in a resolv.conf. It returns nil after a fault.
func (d decoder) option(v strict.Value) []string {
	word, ok := d.Text(v)
	name, value, _ := strings.Cut(word, ":")
	if ok && (name == "" || !strict.IsWord(word)) {
		d.Fault(v, "%s is not an option: write it like ndots:2, without white space", strict.Quote(word))
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

// value reads an option's value, a string or an integer. null and "" mean that the option has no value.
func (d decoder) value(v strict.Value) string {
	switch v.Kind {
	case strict.Null:
		return ""
	case strict.Number:
		if strings.ContainsAny(v.Text, ".eE") {
			d.Fault(v, "%s is not an integer: write one, or put what is meant in quotes", strict.Quote(v.Text))
		}
		return v.Text
	}
	s, ok := d.Text(v)
	if ok && s != "" && !strict.IsWord(s) {
		d.Fault(v, "%s cannot stand in a resolv.conf: it must be one word", strict.Quote(s))
	}
	return s
}
