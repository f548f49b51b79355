// Package hostsfile edits the text of a hosts file (hosts(5)): it puts lines of ours behind all others, and takes them out again. It
// is a pure leaf: whoever calls it reads and writes the file.
//
// A line is ours by the marker at its end, and by nothing else. Every other byte stays, in its order, whatever the file holds. A
// name that a line without the marker has is left to that line: an administrator's word counts more than ours.
package hostsfile

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
)

// Marker ends each line of ours. People read it in the file.
const Marker = "# by neardns-agent hosts"

// broke ends the first of ours where the text before it had no line break at its end, so that Remove takes that away, too.
const broke = Marker + ", with the line break above"

// MaxSize bounds the file that is edited, in bytes. The largest real ones, lists of blocked names, are larger: then resolvers read a
// megabyte for each lookup, and a copy of it at each of our changes is not ours to make.
const MaxSize = 1 << 20

// Entry is one line: an address of either family, without a zone, and its names.
type Entry struct {
	Addr  netip.Addr
	Names []string
}

// Apply returns text with exactly one line of ours for each entry, behind all others and in the order of entries. left lists the
// names, in lower case and sorted, that a line which is not ours has already: they are in no line of ours. An entry that is no line
// of a hosts file, or has no name left, has no line. text is not changed.
func Apply(text []byte, entries []Entry) (out []byte, left []string) {
	base := Remove(text)
	lines, left := render(base, entries)
	return append(base, block(lines, unfinished(base))...), left
}

// render makes a line of each entry, without its marker, and lists the names that base has already.
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

// block is what stands behind all other lines; breaks: the text before it lacks its line break.
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

// Remove returns text without our lines. Of a text that has none it returns every byte.
func Remove(text []byte) []byte {
	base, _ := split(text)
	return base
}

// Ours returns what our lines say, in their order; a line that somebody damaged says nothing. Names are in lower case.
func Ours(text []byte) (entries []Entry) {
	_, ours := split(text)
	for _, o := range ours {
		if addr, names, ok := read(o.line); ok && addr.Zone() == "" {
			entries = append(entries, Entry{Addr: addr, Names: names})
		}
	}
	return entries
}

// own is a line of ours, and where in the text it begins.
type own struct {
	at   int
	line []byte
}

// split parts our lines from all others.
func split(text []byte) (base []byte, ours []own) {
	base = make([]byte, 0, len(text))
	at := 0
	ending := -1 // the length of base at the line that says that the break before it is ours
	var added string
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line = text[:i+1]
		}
		text, at = text[len(line):], at+len(line)
		is, breaks := marked(line)
		if !is {
			base = append(base, line...)
			continue
		}
		ours = append(ours, own{at - len(line), line})
		if breaks {
			ending, added = len(base), "\n"
			if bytes.HasSuffix(line, []byte("\r\n")) { // somebody gave the whole file such ends
				added = "\r\n"
			}
		}
	}
	if ending == len(base) {
		base = bytes.TrimSuffix(base, []byte(added))
	}
	return base, ours
}

// marked tells whether a line is ours, and whether it says that the break before it is, too. Editors may have put blanks or a carriage
// return behind the marker. A line that begins with the marker is a pad, or what is left of one (see InPlace).
func marked(line []byte) (is, breaks bool) {
	content := bytes.TrimRight(line, " \t\r\n")
	breaks = bytes.HasSuffix(content, []byte(broke)) || bytes.HasPrefix(content, []byte(broke))
	return breaks || bytes.HasSuffix(content, []byte(Marker)) || bytes.HasPrefix(content, []byte(Marker)), breaks
}

// unfinished tells of a text whose last line has no break.
func unfinished(text []byte) bool { return len(text) > 0 && text[len(text)-1] != '\n' }

// foreignNames lists the names that resolvers find in the text, in lower case.
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

// read reads a line as resolvers do: nothing counts behind #, nor behind a NUL, where C's strings end. Without an address, as glibc,
// musl and Go's resolver read one, the line says nothing.
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

// isName tells whether a line can have the name and be read back.
func isName(name string) bool {
	return name != "" && len(name) <= 253 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == ""
}
