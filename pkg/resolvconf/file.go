package resolvconf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/neardns/neardns/pkg/strict"
)

// The keywords that are read. Every other line (domain, sortlist, comments, unknown keywords) is kept and has no meaning
// here, as for the kubelet.
const (
	keyNameserver = "nameserver"
	keySearch     = "search"
	keyOptions    = "options"
	keyDomain     = "domain"
)

// File is a resolv.conf, line by line. The zero value is an empty one. It is never changed: With returns another.
type File struct {
	lines []line
}

// line is one line with its end, as it stands in the file, and the words in it.
type line struct {
	text    string
	keyword string // "" for a comment or an empty line
	args    []string
}

func newLine(text string) line {
	l := line{text: text}
	// The kubelet's reading, which trims what a C library would stumble over (an indented keyword is one). A ";" is no
	// comment to it, but makes the first word an unknown one.
	if words := strings.Fields(text); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
		l.keyword, l.args = words[0], words[1:]
	}
	return l
}

// Parse reads a resolv.conf. It never fails; Settings reports the faults.
func Parse(text []byte) *File {
	f := &File{}
	for l := range strings.Lines(string(text)) {
		f.lines = append(f.lines, newLine(l))
	}
	return f
}

// Bytes prints the file: every byte that Parse read, but for the lines that With replaced.
func (f *File) Bytes() []byte {
	var out []byte
	for _, l := range f.lines {
		out = append(out, l.text...)
	}
	return out
}

// Settings returns the file's settings, word for word: nameservers accumulate, the last search line wins, options accumulate
// and the last of a name wins (in the first one's place). The error names each nameserver line without an address; the
// kubelet starts no pod with such a file, the settings returned with the error are the rest of it.
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

// Host reads the file as a node's: as Settings does, and as the kubelet does it for this file alone, without the dot at
// the end of a search domain and without "." itself.
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

// With returns the file with the settings s. Lines of a kind that has them already stay as they are; of the others, the new lines take
// the place of the last old one, or the end of the file. All other lines stay. It fails where a word of s cannot stand
// in a line (white space, a control character, nothing), since that would be read as something else.
func (f *File) With(s Settings) (*File, error) {
	if err := s.checkWords(); err != nil {
		return nil, err
	}
	now, _ := f.Settings() // a nameserver line without an address has no meaning, and goes or stays with its kind
	lines := slices.Clone(f.lines)
	if !slices.Equal(now.Nameservers, s.Nameservers) {
		var texts []string
		for _, n := range s.Nameservers {
			texts = append(texts, keyNameserver+" "+n)
		}
		lines = replace(lines, keyNameserver, "", texts)
	}
	if !slices.Equal(now.Searches, s.Searches) {
		// Of search and domain the last one wins in glibc, so ours comes behind both.
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

// replace puts texts where the last line with the keyword, or with the one that must stay before it, stands.
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

// checkWords reports whether every word of s fits in a line of a file.
func (s Settings) checkWords() error {
	var faults []error
	for _, part := range []struct {
		name  string
		words []string
	}{{"nameservers", s.Nameservers}, {"searches", s.Searches}, {"options", s.Options}} {
		for i, w := range part.words {
			if w == "" || strings.ContainsFunc(w, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
				faults = append(faults, fmt.Errorf("%s[%d]: %s cannot stand in a resolv.conf: it must be one word", part.name, i, strict.Quote(w)))
			}
		}
	}
	return strict.Bounded(faults, mostFaults)
}

// Print prints s as a file of its own: the nameservers, the search line, the options. It fails as With does.
func (s Settings) Print() ([]byte, error) {
	f, err := new(File).With(s)
	if err != nil {
		return nil, err
	}
	return f.Bytes(), nil
}
