// Package hostsfile edits the text of a hosts file (hosts(5)): it adds neardns's lines at the end, and removes them. It does no
// I/O.
//
// A line is neardns's if it has the marker. All other bytes stay as they are and in their order. If a line without the marker has a
// name, neardns leaves that name out of its own lines, because the administrator's line takes precedence.
package hostsfile

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
)

// Marker is the comment at the end of each of neardns's lines. It explains the line to people, and Remove finds the line by it.
const Marker = "# by neardns-agent hosts"

// broke is the marker of neardns's first line if the text before it had no final line break. Remove then also removes the line
// break that Apply added, unless another program's line now follows.
const broke = Marker + ", with the line break above"

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

// Apply returns a copy of text whose neardns lines are replaced by one line for each entry, at the end of the text and in the order
// of entries. A name that another line already has is left out; left lists these names, sorted and in lower case. A name that
// resolvers could not read from the file is left out, too. An entry gets no line if its address is invalid or has a zone, or if none of
// its names remains.
func Apply(text []byte, entries []Entry) (out []byte, left []string) {
	base := Remove(text)
	lines, left := render(base, entries)
	return append(base, block(lines, unfinished(base))...), left
}

// render returns the lines of the entries, without the marker, and the names that it left out because base already has them.
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
			lines = append(lines, e.Addr.String()+"\t"+strings.Join(names, " ")+" ")
		}
	}
	slices.Sort(left)
	return lines, slices.Compact(left)
}

// block returns the text of all neardns lines. breaks means that the text before them has no final line break.
func block(lines []string, breaks bool) []byte {
	var out []byte
	mark := Marker
	if breaks && len(lines) > 0 {
		out, mark = append(out, '\n'), broke
	}
	for _, line := range lines {
		out = append(out, line+mark+"\n"...)
		mark = Marker
	}
	return out
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

// split separates neardns's lines (ours) from all others (base). It removes the line break that Apply added before the first of its lines,
// unless another program's line now follows.
func split(text []byte) (base []byte, ours [][]byte) {
	base = make([]byte, 0, len(text))
	ending := -1 // length of base where a line with the marker broke follows; -1 if there is none
	var added string
	for line := range bytes.Lines(text) {
		is, breaks := marked(line)
		if !is {
			base = append(base, line...)
			continue
		}
		ours = append(ours, line)
		if breaks {
			ending, added = len(base), "\n"
			if bytes.HasSuffix(line, []byte("\r\n")) { // an editor has converted the file's line ends to CRLF
				added = "\r\n"
			}
		}
	}
	if ending == len(base) {
		base = bytes.TrimSuffix(base, []byte(added))
	}
	return base, ours
}

// marked reports whether a line is neardns's (is), and whether neardns added the line break before it (breaks). It ignores blanks
// and a carriage return after the marker, which an editor may have added. A line that begins with the marker is neardns's too: an
// earlier release wrote some files in place and left such lines.
func marked(line []byte) (is, breaks bool) {
	content := bytes.TrimRight(line, " \t\r\n")
	breaks = bytes.HasSuffix(content, []byte(broke)) || bytes.HasPrefix(content, []byte(broke))
	return breaks || bytes.HasSuffix(content, []byte(Marker)) || bytes.HasPrefix(content, []byte(Marker)), breaks
}

// unfinished reports whether a text has no line break at its end.
func unfinished(text []byte) bool { return len(text) > 0 && text[len(text)-1] != '\n' }

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
