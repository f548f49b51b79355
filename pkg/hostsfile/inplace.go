package hostsfile

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Step is one call of pwrite(2), or of ftruncate(2) where Text is nil.
type Step struct {
	At   int64 // where Text goes, or the file's new length, in bytes
	Text []byte
}

// InPlace lists the steps that give a file which holds text the lines of entries, for a file that cannot be replaced. There are none
// where it has them, also if lines that are not ours stand behind them. No byte of such lines is ever written: lines of ours that
// stand before one become comments of the same length, and the new ones go to the end. Only where entries is empty, so that all of ours
// goes, text behind them moves up.
//
// A process may be killed within a step, at a border of the kernel's pages. Whatever is there then, Remove takes it out: the lines go
// over a pad that has the marker at its beginning and, beyond their end, again.
func InPlace(text []byte, entries []Entry) (steps []Step, left []string) {
	base, ours := split(text)
	lines, left := render(base, entries)
	if len(lines) == 0 {
		return withdraw(base, ours), left
	}
	if slices.EqualFunc(Ours(text), Ours(block(lines, false)), same) {
		return nil, left
	}
	from, breaks := len(text), unfinished(text)
	if len(ours) > 0 && len(base) <= ours[0].at { // nothing but ours from there on
		from, breaks = ours[0].at, len(base) < ours[0].at
	} else {
		for _, o := range ours {
			steps = append(steps, blank(o))
		}
	}
	out := block(lines, breaks)
	begin := ""
	if breaks {
		begin = "\n"
		if from < len(text) { // that break is there
			begin, out = "", out[1:]
		}
	}
	p := pad(max(len(text)-from, len(out)), begin, breaks)
	return append(steps, Step{int64(from), p}, Step{int64(from), out}, Step{At: int64(from + len(out))}), left
}

// withdraw lists the steps that take our lines away.
func withdraw(base []byte, ours []own) []Step {
	if len(ours) == 0 {
		return nil
	}
	var steps []Step
	if at := ours[0].at; at < len(base) {
		steps = append(steps, Step{int64(at), slices.Clone(base[at:])})
	}
	return append(steps, Step{At: int64(len(base))})
}

// blank makes a line of ours a comment of the same length.
func blank(o own) Step {
	end := len(o.line)
	for end > 0 && (o.line[end-1] == '\n' || o.line[end-1] == '\r') {
		end--
	}
	return Step{int64(o.at), []byte(Marker + strings.Repeat(" ", max(0, end-len(Marker))))}
}

// pad is a comment that ends in the marker, behind at least n bytes.
func pad(n int, begin string, breaks bool) []byte {
	mark := Marker
	if breaks {
		mark = broke
	}
	head := begin + mark
	return []byte(head + strings.Repeat(" ", max(0, n-len(head))+1) + mark + "\n")
}

// same compares what two lines say.
func same(a, b Entry) bool {
	return a.Addr == b.Addr && slices.Equal(a.Names, b.Names)
}

// Compare orders entries by their first names, then by family and address, for those who list them.
func Compare(a, b Entry) int {
	return cmp.Or(slices.Compare(a.Names, b.Names), netip.Addr.Compare(a.Addr, b.Addr))
}
