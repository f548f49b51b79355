package resolvconf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Note is a remark about a pod's settings for the pod's owner or the operator. It does not change the settings.
type Note struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
}

// Code is the kind of a note, one of the constants below.
type Code string

// The kinds of notes.
const (
	NameserversCut Code = "nameservers-cut" // more nameservers than the limit; the last ones were removed
	SearchesCut    Code = "searches-cut"    // more search domains than the limits; some were removed
	LongLine       Code = "long-line"       // a line that is too long for musl, which ignores it
	UnknownOption  Code = "unknown-option"  // an option that no resolver reads
	OptionValue    Code = "option-value"    // an option whose value is missing, too large or not allowed
)

func note(code Code, format string, args ...any) Note {
	return Note{code, fmt.Sprintf(format, args...)}
}

// muslLine is the maximum length of a line that musl reads, including the line end. musl ignores a longer line as a whole, so a
// search line loses all its domains (src/network/resolvconf.c of musl 1.2: line[256]).
const muslLine = 255

// knownOption is the form of an option.
type knownOption struct {
	value bool // the option needs a number as its value
	most  int  // the maximum of that number; glibc uses it in place of a greater one
}

// knownOptions are the options of resolv.conf(5), and usevc and tcp, which are the BSDs' names of use-vc and which Go accepts too.
// musl and Go read no others. The maximums are glibc's (RES_MAXNDOTS, RES_MAXRETRANS, RES_MAXRETRY in resolv.h); musl accepts up to
// 60 s and 10 attempts. no-aaaa exists since glibc 2.36.
var knownOptions = map[string]knownOption{"ndots": {true, 15}, "timeout": {true, 30}, "attempts": {true, 5}, "debug": {}, "rotate": {},
	"no-check-names": {}, "inet6": {}, "ip6-bytestring": {}, "ip6-dotint": {}, "no-ip6-dotint": {}, "edns0": {}, "single-request": {},
	"single-request-reopen": {}, "no-tld-query": {}, "no_tld_query": {}, "use-vc": {}, "no-reload": {}, "trust-ad": {}, "no-aaaa": {},
	"usevc": {}, "tcp": {}}

// KnownOptions returns the names of all options that some resolver reads, for messages.
func KnownOptions() string { return strings.Join(slices.Sorted(maps.Keys(knownOptions)), ", ") }

// lint returns notes about settings that some resolver ignores or changes.
func (s Settings) lint() []Note {
	notes := lintOptions(s.Options)
	for _, l := range []string{keySearch + " " + strings.Join(s.Searches, " "), keyOptions + " " + strings.Join(s.Options, " ")} {
		if len(l)+1 > muslLine {
			keyword, _, _ := strings.Cut(l, " ")
			notes = append(notes, note(LongLine, "the %s line has %d characters: musl (Alpine) ignores one of more than %d, as if it were not there",
				keyword, len(l)+1, muslLine))
		}
	}
	return notes
}

// lintOptions returns notes about unknown options and wrong values. It stops after 8 notes, because a pod may have any number of options.
func lintOptions(options []string) []Note {
	const most = 8
	var notes []Note
	for i, o := range options {
		if len(notes) == most {
			return append(notes, note(UnknownOption, "and %d more options, which were not looked at", len(options)-i))
		}
		name, value, _ := strings.Cut(o, ":")
		k, ok := knownOptions[name]
		number, err := strconv.ParseUint(value, 10, 32)
		switch {
		case !ok:
			notes = append(notes, note(UnknownOption, "option %s is known to no resolver and has no effect", strict.Quote(o)))
		case k.value && err != nil:
			notes = append(notes, note(OptionValue, "option %s needs a number behind the colon and has no effect as it is", strict.Quote(o)))
		case k.value && number > uint64(k.most):
			notes = append(notes, note(OptionValue, "option %s is taken as %s:%d", strict.Quote(o), name, k.most))
		case !k.value && value != "":
			notes = append(notes, note(OptionValue, "option %s is written without a value", strict.Quote(o)))
		}
	}
	return notes
}
