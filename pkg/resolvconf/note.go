package resolvconf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// Note is something in a pod's settings that its owner or the operator may want to know. It never changes them.
type Note struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
}

// Code is the kind of a note, from a closed list.
type Code string

// The kinds of notes.
const (
	MissingClusterDNS Code = "missing-cluster-dns" // no cluster DNS address is known; the settings are those of Default
	UnknownPolicy     Code = "unknown-policy"      // taken as ClusterFirst
	NameserversCut    Code = "nameservers-cut"     // more than the limit; the last ones were left out
	SearchesCut       Code = "searches-cut"        // the same for search domains
	BeyondLimits      Code = "beyond-limits"       // more than the limits, and left so, since no overlay added to it
	LongLine          Code = "long-line"           // a line that musl ignores
	UnknownOption     Code = "unknown-option"      // an option that no resolver reads
	OptionValue       Code = "option-value"        // an option whose value no resolver takes as it stands
)

func note(code Code, format string, args ...any) Note {
	return Note{code, fmt.Sprintf(format, args...)}
}

// muslLine is the longest line that musl reads, with its end; a longer one is ignored whole, and with it the whole search
// list (src/network/resolvconf.c of musl 1.2: line[256]).
const muslLine = 255

// knownOption is the form of an option.
type knownOption struct {
	value bool // it needs a number
	most  int  // greater ones are taken as this; 0: no bound
}

// knownOptions has those of resolv.conf(5), and of musl and Go, which know no others. The bounds are glibc's (RES_MAXNDOTS, RES_MAXRETRANS,
// RES_MAXRETRY in resolv.h); musl takes up to 60 s and 10 attempts. no-aaaa is glibc's since 2.36. usevc and tcp are the BSDs' names of
// use-vc, which Go takes too.
var knownOptions = map[string]knownOption{"ndots": {true, 15}, "timeout": {true, 30}, "attempts": {true, 5}, "debug": {}, "rotate": {},
	"no-check-names": {}, "inet6": {}, "ip6-bytestring": {}, "ip6-dotint": {}, "no-ip6-dotint": {}, "edns0": {}, "single-request": {},
	"single-request-reopen": {}, "no-tld-query": {}, "no_tld_query": {}, "use-vc": {}, "no-reload": {}, "trust-ad": {}, "no-aaaa": {},
	"usevc": {}, "tcp": {}}

// KnownOptions lists the options that a resolver reads, for messages.
func KnownOptions() string { return strings.Join(slices.Sorted(maps.Keys(knownOptions)), ", ") }

// Knows reports whether a resolver reads an option, as a word of a resolv.conf, whatever its value.
func Knows(option string) bool {
	name, _, _ := strings.Cut(option, ":")
	_, ok := knownOptions[name]
	return ok
}

// lint notes what a resolver will not take as it was meant.
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

// lintOptions notes the first few: the number of a pod's options has no limit.
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
