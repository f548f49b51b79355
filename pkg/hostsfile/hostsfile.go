// Package hostsfile edits the text of a hosts file (hosts(5)): it adds lines of ours at the end, and removes them. It does no I/O.
//
// A line is ours if it has the marker. Every other byte stays, in its order, whatever the file holds. If a line without the marker has a
// name, no line of ours has it: the administrator's line wins.
package hostsfile

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
)

// Marker ends each line of ours, for people who read the file.
const Marker = "# by neardns-agent hosts"

// broke ends our first line if the text before it had no line break at its end, so that Remove removes the one that we added.
const broke = Marker + ", with the line break above"

// MaxSize is the size of the largest file that is edited, in bytes. Lists of blocked names are larger, and we do not copy those at each
// change.
const MaxSize = 1 << 20

// Entry is one line: an address of either family, without a zone, and its names.
type Entry struct {
	Addr  netip.Addr
	Names []string
}

// Equal reports whether two entries make the same line.
func (e Entry) Equal(o Entry) bool { return e.Addr == o.Addr && slices.Equal(e.Names, o.Names) }

// Apply returns text with exactly one line of ours for each entry, behind all others and in the order of entries. left lists the
// names, in lower case and sorted, that another line has already: no line of ours has them. An entry that makes no valid line, or has no
// name left, is dropped. text is not changed.
func Apply(text []byte, entries []Entry) (out []byte, left []string) {
	base := Remove(text)
	lines, left := render(base, entries)
	return append(base, block(lines, unfinished(base))...), left
}

// render makes a line of each entry, without its marker, and lists the names that base already has.
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

// block is the text of all our lines; breaks: the text before it has no line break at its end.
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

// Remove returns text without our lines, and a text that has none unchanged.
func Remove(text []byte) []byte {
	base, _ := split(text)
	return base
}

// Ours returns the entries of our lines, in their order and with names in lower case. A damaged line has none.
func Ours(text []byte) (entries []Entry) {
	_, ours := split(text)
	for _, line := range ours {
		if addr, names, ok := read(line); ok && addr.Zone() == "" {
			entries = append(entries, Entry{Addr: addr, Names: names})
		}
	}
	return entries
}

// split separates our lines from all others.
func split(text []byte) (base []byte, ours [][]byte) {
	base = make([]byte, 0, len(text))
	ending := -1 // the length of base at the line by which the break before it is ours
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
			if bytes.HasSuffix(line, []byte("\r\n")) { // an editor changed all line ends of the file
				added = "\r\n"
			}
		}
	}
	if ending == len(base) {
		base = bytes.TrimSuffix(base, []byte(added))
	}
	return base, ours
}

// marked reports whether a line is ours, and whether the break before it is, too. An editor may have added blanks or a carriage return
// after the marker. A line that begins with the marker was left by an earlier release, which wrote some files in place.
func marked(line []byte) (is, breaks bool) {
	content := bytes.TrimRight(line, " \t\r\n")
	breaks = bytes.HasSuffix(content, []byte(broke)) || bytes.HasPrefix(content, []byte(broke))
	return breaks || bytes.HasSuffix(content, []byte(Marker)) || bytes.HasPrefix(content, []byte(Marker)), breaks
}

// unfinished reports whether the last line of a text has no line break.
func unfinished(text []byte) bool { return len(text) > 0 && text[len(text)-1] != '\n' }

// foreignNames is the set of names that resolvers find in the text, in lower case.
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

// read reads a line as resolvers do: they ignore text after a #, and after a NUL, which ends a C string. A line without an address that
// glibc, musl and Go's resolver can read is ignored.
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

// fold brings a name into the form in which names are compared.
func fold(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// isName reports whether a line with the name can be read back.
func isName(name string) bool {
	return name != "" && len(name) <= 253 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == ""
}
