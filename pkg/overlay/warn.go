package overlay

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// Warnings returns effects of the rules on a typical pod that are probably not intended: an ignored level, settings that exceed the
// limits, options that resolvers do not accept. v is the value that the rules were read from; it gives each warning its place in
// the file. A typical pod has the dnsPolicy ClusterFirst, the first of clusterDNS as nameserver and the search list of the cluster
// domain.
func Warnings(v strict.Value, rules Rules, clusterDNS []netip.Addr, domain string) []*strict.Fault {
	node := resolvconf.Node{
		Host:       &resolvconf.Settings{Nameservers: []string{"192.0.2.1"}}, // any address
		ClusterDNS: clusterDNS[:min(1, len(clusterDNS))], ClusterDomain: domain, Locals: map[string]string{},
	}
	for _, a := range node.ClusterDNS {
		node.Locals[a.String()] = a.String() // only the number of addresses matters
	}
	const namespace = "default"
	usual := resolvconf.Form(node, resolvconf.Pod{Policy: resolvconf.ClusterFirst, Namespace: namespace}, nil).Settings
	w := warner{seen: map[string]bool{}}
	try := func(name string, at strict.Value) {
		_, applied, ignored := rules.For(v.Field, name, nil).Apply(node, nil, namespace, usual)
		for _, i := range ignored {
			w.ignored(at, i)
		}
		for _, n := range applied.Notes {
			w.note(at, n)
		}
	}
	try("", v)
	if spaces, ok := v.Map()[keyNamespaces]; ok {
		for _, m := range spaces.Sorted() {
			try(m.Key, m.Value)
		}
	}
	return w.out
}

// warner collects warnings with their places. A warning about all pods is not repeated for each namespace.
type warner struct {
	seen map[string]bool
	out  []*strict.Fault
}

func (w *warner) add(at strict.Value, message string) {
	if w.seen[message] {
		return
	}
	w.seen[message] = true
	if known := resolvconf.KnownOptions(); strings.Contains(message, "known to no resolver") && !w.seen[known] {
		// List the known options only once. The reader of the warning finds the right spelling there.
		w.seen[known] = true
		message += "; resolvers know " + known
	}
	w.out = append(w.out, &strict.Fault{Place: at.Place, Field: at.Field, Message: message})
}

func (w *warner) ignored(level strict.Value, i podfile.Ignored) {
	switch {
	case strings.HasPrefix(i.What, "nameserver "):
		w.add(member(level, "nameservers"), strings.Fields(i.What)[1]+" is left out: "+i.Why)
	default:
		w.add(level, "no pod with the kubelet's settings gets it: "+i.Why)
	}
}

func (w *warner) note(level strict.Value, n resolvconf.Note) {
	const usual = "; so it is for each pod with the kubelet's settings"
	switch n.Code {
	case resolvconf.NameserversCut:
		w.add(member(level, "nameservers"), n.Text+usual)
	case resolvconf.SearchesCut:
		w.add(member(level, "searches"), n.Text+usual)
	case resolvconf.UnknownOption, resolvconf.OptionValue:
		_, word, _ := strings.Cut(n.Text, `"`)
		word, _, _ = strings.Cut(word, `"`)
		w.add(option(level, word), n.Text)
	case resolvconf.LongLine:
		key := "searches"
		if strings.HasPrefix(n.Text, "the options") {
			key = "options"
		}
		w.add(member(level, key), n.Text)
	}
}

// member returns the value of a level's key, where "search" counts as "searches". If the level lacks the key, it returns the level
// itself, because another level has the setting.
func member(level strict.Value, key string) strict.Value {
	m := level.Map()
	if v, ok := m[key]; ok {
		return v
	}
	if v, ok := m["search"]; ok && key == "searches" {
		return v
	}
	return level
}

// option returns the item of a level's options that is the given word, or an object with that name or name:value. If there is none, it
// returns the list of options, or the level if it has no such list.
func option(level strict.Value, word string) strict.Value {
	options := member(level, "options")
	items := options.Items()
	at := slices.IndexFunc(items, func(item strict.Value) bool {
		if item.Kind == strict.String {
			return item.Text == word
		}
		m := item.Map()
		return m["name"].Text == word || m["name"].Text+":"+m["value"].Text == word
	})
	if at < 0 {
		return options
	}
	return items[at]
}
