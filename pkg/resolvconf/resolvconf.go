package resolvconf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/neardns/neardns/pkg/strict"
)

// The keywords that are read. Every other line (sortlist, comments, unknown keywords) is kept and ignored, as in the kubelet. Only
// the position of a domain line is used, when a search line is added.
const (
	keyNameserver = "nameserver"
	keySearch     = "search"
	keyOptions    = "options"
	keyDomain     = "domain"
)

// File is a resolv.conf, line by line. The zero value is an empty file. A File is immutable: With returns a new one.
type File struct {
	lines []line
}

// line is one line of a resolv.conf: its unchanged text with the line end, and the words in it.
type line struct {
	text    string
	keyword string // "" if the line is a comment or empty
	args    []string
}

func newLine(text string) line {
	l := line{text: text}
	// Read a line as the kubelet does. It accepts an indented keyword, which C libraries do not. It does not take a line that
	// begins with ";" as a comment, but the line's first word is no known keyword.
	if words := strings.Fields(text); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
		l.keyword, l.args = words[0], words[1:]
	}
	return l
}

// Parse reads a resolv.conf. It never fails; the method Settings returns the faults.
func Parse(text []byte) *File {
	f := &File{}
	for l := range strings.Lines(string(text)) {
		f.lines = append(f.lines, newLine(l))
	}
	return f
}

// Bytes returns the text of the file: every byte that Parse read, except the lines that With replaced.
func (f *File) Bytes() []byte {
	var out []byte
	for _, l := range f.lines {
		out = append(out, l.text...)
	}
	return out
}

// Settings returns the settings in the file, word for word. Nameservers accumulate, and the last search line wins. Options
// accumulate too, but of one name only the last option is kept, in the position of the first. The error names each nameserver line
// without an address. The kubelet starts no pod with such a file; the returned settings then lack these lines.
func (f *File) Settings() (Settings, error) {
	var s Settings
	var faults []error
	for i, l := range f.lines {
		switch l.keyword {
		case keyNameserver:
			if len(l.args) == 0 {
				faults = append(faults, fmt.Errorf("line %d: nameserver without an address: write one behind it or take the line out", i+1))
				continue
			}
			s.Nameservers = append(s.Nameservers, l.args[0])
		case keySearch:
			s.Searches = slices.Clone(l.args)
		case keyOptions:
			s.Options = append(s.Options, l.args...)
		}
	}
	s.Options = lastOfEach(s.Options)
	return s, errors.Join(faults...)
}

// Host returns the settings of a node's resolv.conf. It differs from Settings as the kubelet does for this one file: a search
// domain has no final dot, and the search domain "." is left out.
func (f *File) Host() (Settings, error) {
	s, err := f.Settings()
	var searches []string
	for _, domain := range s.Searches {
		if domain != "." {
			searches = append(searches, strings.TrimSuffix(domain, "."))
		}
	}
	s.Searches = searches
	return s, err
}

// With returns a copy of the file that has the settings s. If the nameservers, the search domains or the options already are those of s,
// their lines stay as they are. Otherwise the nameserver, search or options lines are removed, and the new ones are inserted where the
// last of them was (a search line: after the last search or domain line), or at the end of the file if there was none. All other lines
// stay, domain lines too. With fails if a word of s is empty or has white space or a control character, because it would be read as
// something else.
func (f *File) With(s Settings) (*File, error) {
	if err := s.checkWords(); err != nil {
		return nil, err
	}
	// Ignore the error: a nameserver line without an address has no meaning. It is kept or removed together with the other
	// nameserver lines.
	now, _ := f.Settings()
	lines := slices.Clone(f.lines)
	if !slices.Equal(now.Nameservers, s.Nameservers) {
		var texts []string
		for _, n := range s.Nameservers {
			texts = append(texts, keyNameserver+" "+n)
		}
		lines = replace(lines, keyNameserver, "", texts)
	}
	if !slices.Equal(now.Searches, s.Searches) {
		// In glibc, the last line with search or domain wins, so the new search line goes after both.
		lines = replace(lines, keySearch, keyDomain, oneLine(keySearch, s.Searches))
	}
	if !slices.Equal(now.Options, s.Options) {
		lines = replace(lines, keyOptions, "", oneLine(keyOptions, s.Options))
	}
	return &File{lines}, nil
}

func oneLine(keyword string, words []string) []string {
	if len(words) == 0 {
		return nil
	}
	return []string{keyword + " " + strings.Join(words, " ")}
}

// replace removes the lines with keyword. It inserts texts after the last line whose keyword is keyword or the argument before (unless
// that is ""), or at the end if there is no such line.
func replace(lines []line, keyword, before string, texts []string) []line {
	at := len(lines)
	for i, l := range lines {
		if l.keyword == keyword || before != "" && l.keyword == before {
			at = i + 1
		}
	}
	var out []line
	for i := range len(lines) + 1 {
		if i == at {
			if n := len(out); n > 0 && len(texts) > 0 && !strings.HasSuffix(out[n-1].text, "\n") {
				out[n-1].text += "\n"
			}
			for _, t := range texts {
				out = append(out, newLine(t+"\n"))
			}
		}
		if i < len(lines) && lines[i].keyword != keyword {
			out = append(out, lines[i])
		}
	}
	return out
}

// checkWords returns an error for the first word of s that does not fit in a line of a resolv.conf.
func (s Settings) checkWords() error {
	for _, w := range slices.Concat(s.Nameservers, s.Searches, s.Options) {
		if w == "" || strings.ContainsFunc(w, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return fmt.Errorf("%s cannot stand in a resolv.conf: it must be one word", strict.Quote(w))
		}
	}
	return nil
}
