package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/neardns/neardns/pkg/strict"
)

// Versions returns the CNI versions that the plugin supports, oldest first. A list of another version must not get the neardns
// entry: if one plugin of a list does not support its version, CRI-O drops the whole network, and other runtimes fail at each pod
// start.
func Versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// ErrNoMain means that neardns is the only plugin of a list. There is no network to chain it to, and a list without any plugin is
// invalid.
var ErrNoMain = errors.New("no plugin but neardns in it")

// Network has the parts of a CNI configuration list that the installer needs.
type Network struct {
	Name        string
	CNIVersions []string // the value of cniVersion, then those of cniVersions; empty if the list has neither
	Types       []string // types of the list's plugins in their order, neardns's included
}

// Position returns the position of neardns's entry in the list, counted from 1, or 0 if there is no such entry.
func (n Network) Position() int { return slices.Index(n.Types, Type) + 1 }

// CheckVersion returns nil if a plugin that supports the given versions, oldest first, can join the network: the network declares at least
// one of them, and none that is newer than all of them. A runtime uses the highest declared version that it supports itself (libcni 1.2
// and later). So after an upgrade of the runtime, a newer declared version would make each pod start fail.
func (n Network) CheckVersion(supported []string) error {
	shared := false
	for _, v := range n.CNIVersions {
		if slices.Contains(supported, v) {
			shared = true
		} else if newer, err := version.GreaterThanOrEqualTo(v, supported[len(supported)-1]); err == nil && newer {
			return fmt.Errorf("it declares CNI version %q, neardns speaks %s: take %[1]q out, or a runtime that knows it could start no pod", v,
				strings.Join(supported, ", "))
		}
	}
	if shared {
		return nil
	}
	named := strings.Join(n.CNIVersions, ", ")
	if named == "" {
		named = "none, which means 0.1.0"
	}
	return fmt.Errorf("cniVersion is %s, neardns speaks %s: set cniVersion to one of these if every plugin of the list speaks it", named,
		strings.Join(supported, ", "))
}

// Read returns the parts of a configuration list that Network has. It returns an error if the name or the plugins are missing, if one of
// the parts has the wrong type, or if runtimes could read the list in different ways.
func Read(list []byte) (Network, error) {
	d, err := parse(list)
	if err != nil {
		return Network{}, err
	}
	return d.network, nil
}

// Append returns list with entry as its last plugin and only neardns entry. Every other byte stays as it is. If list needs no
// change, Append returns list itself, so that the caller knows that there is nothing to write.
func Append(list, entry []byte) ([]byte, error) {
	flat, err := checkEntry(entry)
	if err != nil {
		return nil, err
	}
	d, err := parse(list)
	if err != nil {
		return nil, err
	}
	if at := len(d.plugins) - 1; slices.Index(d.network.Types, Type) == at && d.equals(at, flat) {
		return list, nil // the only neardns entry is the last plugin, and is the wanted one
	}
	rest, err := d.withoutEntry(list)
	if err != nil {
		return nil, err
	}
	if d, err = parse(rest); err != nil {
		return nil, err
	}
	end := d.plugins[len(d.plugins)-1].End()
	out := slices.Clone(rest[:end])
	out = append(out, ',')
	gap := d.gap(rest)
	out = append(out, gap...)
	if at := bytes.LastIndexByte(gap, '\n'); at >= 0 {
		var indented bytes.Buffer
		if err := json.Indent(&indented, flat, string(gap[at+1:]), d.unit(rest)); err != nil {
			return nil, fmt.Errorf("indent entry: %w", err)
		}
		out = append(out, indented.Bytes()...)
	} else {
		out = append(out, flat...)
	}
	return append(out, rest[end:]...), nil
}

// Holds reports whether list has entry at any position after the first, and no other neardns entry. A program that watches the list
// uses Holds instead of Append: two such programs that both want the last position would rewrite the list forever.
func Holds(list, entry []byte) (bool, error) {
	flat, err := checkEntry(entry)
	if err != nil {
		return false, err
	}
	d, err := parse(list)
	if err != nil {
		return false, err
	}
	at := d.network.Position() - 1
	return at > 0 && !slices.Contains(d.network.Types[at+1:], Type) && d.equals(at, flat), nil
}

// Drop returns list without its neardns entries, and every other byte as it is. If there is no neardns entry, it returns list
// itself. If there is no other plugin, the error is ErrNoMain, because an empty list is invalid.
func Drop(list []byte) ([]byte, error) {
	d, err := parse(list)
	if err != nil {
		return nil, err
	}
	return d.withoutEntry(list)
}

// FromPlugin converts the configuration of a single plugin (a .conf or .json file) to a configuration list that means the same. The
// list has the plugin's name and cniVersion, and the plugin's text unchanged but for its indentation. ToPlugin converts it back.
func FromPlugin(conf []byte) ([]byte, error) {
	top, err := object(conf)
	if err != nil {
		return nil, err
	}
	name, named := top["name"]
	if _, isList := top["plugins"]; isList {
		return nil, errors.New(`has "plugins", so it is a list, which a runtime reads only from a file that ends in .conflist: rename it`)
	}
	if _, ok := top["type"]; !ok || !named {
		return nil, errors.New(`has no "type" or no "name": not a plugin's configuration`)
	}
	text := bytes.TrimSpace(conf)
	at := bytes.Index(conf, text)
	var out bytes.Buffer
	out.Write(conf[:at])
	out.WriteString("{\n")
	if version, ok := top["cniVersion"]; ok {
		fmt.Fprintf(&out, "  \"cniVersion\": %s,\n", version.Raw())
	}
	// Indent the plugin's text by whole lines, so that nothing inside a line changes. This is safe because a JSON string cannot
	// span lines.
	inner := bytes.ReplaceAll(text, []byte("\n"), []byte(shifted))
	fmt.Fprintf(&out, "  \"name\": %s,\n  \"plugins\": [\n    %s\n  ]\n}", name.Raw(), inner)
	out.Write(conf[at+len(text):])
	if _, err := parse(out.Bytes()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// shifted is a line break and the indentation of the next line of a plugin's text inside "plugins".
const shifted = "\n    "

// ToPlugin returns the single plugin's configuration that FromPlugin converted to list, byte for byte. made is false if FromPlugin
// did not make this list.
func ToPlugin(list []byte) (conf []byte, made bool) {
	d, err := parse(list)
	if err != nil || len(d.plugins) != 1 {
		return nil, false
	}
	text := bytes.TrimSpace(list)
	at := bytes.Index(list, text)
	inner := bytes.ReplaceAll(d.plugins[0].Raw(), []byte(shifted), []byte("\n"))
	conf = slices.Concat(list[:at], inner, list[at+len(text):])
	again, err := FromPlugin(conf)
	return conf, err == nil && bytes.Equal(again, list)
}

// document is a parsed configuration list with the positions of its plugins in the text.
type document struct {
	network Network
	plugins []strict.Value
	open    int // offset just after the '[' of "plugins"
}

// equals reports whether the plugin at index at, as compact JSON, equals flat.
func (d document) equals(at int, flat []byte) bool {
	var have bytes.Buffer
	return json.Compact(&have, d.plugins[at].Raw()) == nil && bytes.Equal(have.Bytes(), flat)
}

// withoutEntry returns list without its neardns entries and the comma next to each, or ErrNoMain if there is no other plugin.
func (d document) withoutEntry(list []byte) ([]byte, error) {
	first := slices.IndexFunc(d.network.Types, func(t string) bool { return t != Type })
	if first < 0 {
		return nil, ErrNoMain
	}
	if d.network.Position() == 0 {
		return list, nil
	}
	out := slices.Clone(list[:d.plugins[0].Start()])
	out = append(out, d.plugins[first].Raw()...)
	for i := first + 1; i < len(d.plugins); i++ {
		if d.network.Types[i] != Type {
			out = append(out, list[d.plugins[i-1].End():d.plugins[i].End()]...)
		}
	}
	return append(out, list[d.plugins[len(d.plugins)-1].End():]...), nil
}

// gap returns the white space before the list's last plugin. Append puts the same before the entry, to format it like the others.
func (d document) gap(list []byte) []byte {
	from, to := d.open, d.plugins[0].Start()
	if n := len(d.plugins); n > 1 {
		from, to = d.plugins[n-2].End(), d.plugins[n-1].Start()
		from += bytes.IndexByte(list[from:to], ',') + 1
	}
	return list[from:to]
}

// unit returns one step of the list's indentation: the white space before its first key, or two spaces if no indented line begins
// with that key.
func (d document) unit(list []byte) string {
	_, rest, _ := bytes.Cut(list, []byte("{"))
	space := rest[:len(rest)-len(bytes.TrimLeft(rest, " \t\r\n"))]
	if at := bytes.LastIndexByte(space, '\n'); at >= 0 && at+1 < len(space) {
		return string(space[at+1:])
	}
	return "  "
}

func checkEntry(entry []byte) (flat []byte, err error) {
	top, err := object(entry)
	if err != nil {
		return nil, fmt.Errorf("entry: %w", err)
	}
	if t, err := typeOf(bytes.TrimSpace(entry)); err != nil || t != Type {
		return nil, fmt.Errorf("entry: its type is %q, not %q", t, Type)
	}
	if _, ok := top["redirects"]; !ok {
		return nil, errors.New(`entry: has no "redirects": it would steer nothing`)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, entry); err != nil {
		return nil, fmt.Errorf("entry: %w", err)
	}
	return compact.Bytes(), nil
}
