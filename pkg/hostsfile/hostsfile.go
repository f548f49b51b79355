// Package hostsfile edits the text of a hosts file (hosts(5)): it adds neardns's lines, and removes them. It does no I/O.
//
// A line is neardns's if it has the marker. All other bytes stay as they are and in their order. If a line without the marker has a name,
// neardns leaves that name out of its own lines, because the administrator's line takes precedence.
package hostsfile

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
)

// Marker is in each of neardns's lines, as a comment at the end. It explains the line to people, and Remove finds the line by it.
const Marker = "# by neardns-agent hosts"

// MaxSize is the maximum size in bytes of a hosts file that the agent edits. A larger file is usually a list of blocked names, and
// copying it at each change would cost too much.
const MaxSize = 1 << 20

// Entry is one line of a hosts file: an IP address without a zone, and its names.
type Entry struct {
	Addr  netip.Addr
	Names []string
}

// Equal reports whether two entries have the same address and the same names in the same order.
func (e Entry) Equal(o Entry) bool { return e.Addr == o.Addr && slices.Equal(e.Names, o.Names) }

// Apply returns a copy of text whose neardns lines are replaced by one line for each entry, in the order of entries: at the end of the
// text, or at its beginning if the last line has no line break. A name that another line already has is left out; left lists these names,
// sorted and in lower case. A name that resolvers could not read from the file is left out, too. An entry gets no line if its address is
// invalid or has a zone, or if none of its names remains.
func Apply(text []byte, entries []Entry) (out []byte, left []string) {
	base, _ := split(text)
	lines, left := render(base, entries)
	ours := []byte(strings.Join(lines, ""))
	if len(base) > 0 && base[len(base)-1] != '\n' {
		return append(ours, base...), left
	}
	return append(base, ours...), left
}

// render returns the lines of the entries, and the names that it left out because base already has them.
func render(base []byte, entries []Entry) (lines, left []string) {
	foreign := foreignNames(base)
	for _, e := range entries {
		var names []string
		for _, name := range e.Names {
			switch {
			case foreign[fold(name)]:
				left = append(left, fold(name))
			case isName(name):
				names = append(names, name)
			}
		}
		if e.Addr.IsValid() && e.Addr.Zone() == "" && len(names) > 0 {
			lines = append(lines, e.Addr.String()+"\t"+strings.Join(names, " ")+" "+Marker+"\n")
		}
	}
	slices.Sort(left)
	return lines, slices.Compact(left)
}

// Remove returns text without neardns's lines. If it has none, it is returned unchanged.
func Remove(text []byte) []byte {
	base, _ := split(text)
	return base
}

// Ours returns the entries of neardns's lines, in their order and with names in lower case. It skips damaged lines.
func Ours(text []byte) (entries []Entry) {
	_, ours := split(text)
	for _, line := range ours {
		if addr, names, ok := read(line); ok && addr.Zone() == "" {
			entries = append(entries, Entry{Addr: addr, Names: names})
		}
	}
	return entries
}

// split separates neardns's lines (ours) from all others (base).
func split(text []byte) (base []byte, ours [][]byte) {
	base = make([]byte, 0, len(text))
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(Marker)) {
			ours = append(ours, line)
		} else {
			base = append(base, line...)
		}
	}
	return base, ours
}

// foreignNames returns the names that resolvers find in the text, in lower case.
func foreignNames(text []byte) map[string]bool {
	out := map[string]bool{}
	for line := range bytes.Lines(text) {
		_, names, ok := read(line)
		if !ok {
			continue
		}
		for _, name := range names {
			out[name] = true
		}
	}
	return out
}

// read parses a line as resolvers do: it ignores text after a #, and after a NUL byte, which ends a C string. ok is false if the
// line has no name or does not begin with an IP address.
func read(line []byte) (addr netip.Addr, names []string, ok bool) {
	if i := bytes.IndexAny(line, "#\x00"); i >= 0 {
		line = line[:i]
	}
	fields := bytes.Fields(line)
	if len(fields) < 2 {
		return addr, nil, false
	}
	addr, err := netip.ParseAddr(string(fields[0]))
	if err != nil {
		return addr, nil, false
	}
	for _, f := range fields[1:] {
		names = append(names, fold(string(f)))
	}
	return addr, names, true
}

// fold returns a name in lower case and without its final dot, for comparison with other names.
func fold(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// isName reports whether resolvers can read the name back from a line of a hosts file.
func isName(name string) bool {
	return name != "" && len(name) <= 253 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == ""
}
