package cache_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A scenario is a story about a cache, in a file that an operator can read and write; testdata/scenarios/README.md has its grammar. Parsing
// is strict: a text that is not understood is an error with file and line, so that a slip of the pen cannot turn an expectation into one
// that always holds.

// scenario is one parsed file.
type scenario struct {
	file  string
	name  string
	see   string // the RFC sections, or another reason
	lacks string // why CoreDNS cannot read the block; empty: it can
	block string // the first Corefile block
	steps []step
}

// step is one thing that happens. Exactly one of the pointers is set.
type step struct {
	line     int
	text     string // as written, for errors
	upstream *rule
	mood     *mood
	ask      *ask
	asked    *upstreamQueries
	wait     time.Duration
	reload   string // a new Corefile block
	restart  *restart
	differs  string // why CoreDNS does not meet this step's expectation
}

// rule is what the upstream answers to some queries.
type rule struct {
	name    string // lower case; "*" any, "*.example.org." any below
	qtype   uint16 // 0: any
	class   uint16
	reply   *upstreamReply // nil: never answers
	slow    time.Duration
	instead *dns.Question // the reply's query, if it is another one
}

// upstreamReply is the message that a rule stands for.
type upstreamReply struct {
	rcode                  int
	aa, ad, tc, ra, cookie bool
	records                []record
}

// mood overrides every rule until the next mood.
type mood struct {
	fails, refuses bool
	slow           time.Duration
}

// record is one line of a reply or of an expectation.
type record struct {
	line    int
	section int  // 0 answer, 1 authority, 2 additional
	signed  bool // only in replies to queries with DO
	text    string
	low     uint32 // bounds of the TTL
	high    uint32
}

// ask is one query, or a range of them.
type ask struct {
	names      []string
	qtype      uint16
	class      uint16
	do, cd, ad bool
	rd         bool
	tcp        bool
	edns       uint16 // 0: no EDNS
	opcode     int
	id         uint16 // 0: the runner's choice
	clients    int    // that send queries at once
	also       *dns.Question
	want       *expectation
}

// expectation is what a reply must be.
type expectation struct {
	silent     bool // no reply at all
	rcode      int
	aa, ad, tc bool
	ra         bool
	source     string // "cache", "upstream" or "" for either
	within     time.Duration
	after      time.Duration
	records    []record
	partial    bool // the reply may have other records too
	nonEmpty   bool // records were written, or "..." was
}

// upstreamQueries is the number of queries to the upstream since the scenario's start.
type upstreamQueries struct {
	low, high int
	name      string // "": anything
	qtype     uint16
	class     uint16
}

// restart ends the process after a snapshot and starts another one from it.
type restart struct {
	after time.Duration // time between the two
	back  time.Duration // by how much the second process's wall clock is behind
	cold  bool          // without the snapshot
	boot  bool          // the machine was booted between them
}

// statement is a line and the indented lines below it.
type statement struct {
	line  int
	words words
	text  string
	body  []statement
}

// fault is what stops the parser, which panics with it.
type fault struct{ error }

// must stops the parser unless a condition holds.
func must(holds bool, format string, args ...any) {
	if !holds {
		panic(fault{fmt.Errorf(format, args...)})
	}
}

// parseScenario reads one file.
func parseScenario(file, text string) (sc *scenario, err error) {
	line := 0
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			err = fmt.Errorf("%s:%d: %w", file, line, f.error)
		default:
			panic(f)
		}
	}()
	sc = &scenario{file: file}
	for i, st := range split(text, &line) {
		line = st.line
		must(i > 0 || st.words[0] == "name", "a scenario begins with its name, not with %q", st.words[0])
		sc.statement(st)
	}
	must(sc.name != "" && sc.see != "" && sc.block != "", "name, see (the RFC section or the reason) or cache block is missing")
	must(slices.ContainsFunc(sc.steps, step.expects), "nothing is expected")
	return sc, nil
}

// expects reports whether a step has an expectation.
func (s step) expects() bool { return s.asked != nil || s.ask != nil && s.ask.want != nil }

// split makes statements of lines. A block in braces belongs to the line that opens it.
func split(text string, line *int) (all []statement) {
	open := false
	for i, raw := range strings.Split(text, "\n") {
		*line = i + 1
		raw = strings.TrimRight(raw, " \t\r")
		trimmed := strings.TrimLeft(raw, " \t")
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		st := statement{line: *line, words: strings.Fields(trimmed), text: trimmed}
		switch {
		case open && raw == "}":
			open = false
		case trimmed != raw:
			must(len(all) > 0, "an indented line belongs below another")
			last := &all[len(all)-1]
			last.body = append(last.body, st)
		default:
			must(!open, "the block above is not closed")
			all = append(all, st)
			open = strings.HasSuffix(trimmed, "{")
		}
	}
	must(!open, "the last block is not closed")
	return all
}

func (sc *scenario) statement(st statement) {
	w := st.words
	first, rest := w.next(), strings.TrimSpace(strings.TrimPrefix(st.text, st.words[0]))
	must(len(st.body) == 0 || slices.Contains([]string{"cache", "reload", "upstream", "expect"}, first), "%q takes no lines below it", first)
	s := step{line: st.line, text: st.text}
	switch first {
	case "name":
		once(&sc.name, rest)
		return
	case "see":
		once(&sc.see, rest)
		return
	case "cache":
		once(&sc.block, block(st, st.text))
		return
	case "coredns":
		sc.coredns(w.next(), strings.Join(w, " "))
		return
	case "expect":
		a := sc.last().ask
		must(a != nil && a.want == nil, "expect is below ask, once")
		a.want = w.expectation(st.body)
		return
	case "upstream":
		s.upstream, s.mood = w.upstream(st.body)
	case "ask":
		s.ask = w.ask()
	case "wait":
		s.wait = w.duration()
	case "asked":
		s.asked = w.asked()
	case "reload":
		must(w.next() == "cache", "reload takes a cache block")
		s.reload, w = block(st, rest), nil
	case "restart":
		s.restart = w.restart()
	default:
		must(false, "unknown word %q", first)
	}
	must(len(w) == 0, "too many words: %v", w)
	must(sc.block != "", "%q before the cache block", first)
	sc.steps = append(sc.steps, s)
}

// last is the step that a line belongs to.
func (sc *scenario) last() *step {
	must(len(sc.steps) > 0, "no step is above")
	return &sc.steps[len(sc.steps)-1]
}

func once(to *string, value string) {
	must(*to == "" && value != "", "twice, or without a value")
	*to = value
}

// block returns a Corefile block as it was written, on as many lines.
func block(st statement, head string) string {
	var b strings.Builder
	b.WriteString(head)
	for _, l := range st.body {
		b.WriteString("\n    " + l.text)
	}
	if strings.HasSuffix(head, "{") {
		b.WriteString("\n}")
	}
	return b.String()
}

// coredns is for "coredns differs: why" and "coredns lacks: why".
func (sc *scenario) coredns(what, why string) {
	if what == "lacks:" {
		once(&sc.lacks, why)
		return
	}
	must(what == "differs:" && sc.last().expects(), `write "lacks:", or "differs:" below an expectation, and why`)
	once(&sc.last().differs, why)
}

// words are what is left to read of a line.
type words []string

func (w *words) next() (word string) {
	word, *w = w.peek(), (*w)[1:]
	return word
}

func (w *words) peek() string {
	must(len(*w) > 0, "a word is missing")
	return (*w)[0]
}

// options reads words with their values until the line's end.
func (w *words) options(known map[string]func()) {
	for len(*w) > 0 {
		word := w.next()
		read := known[word]
		must(read != nil, "unknown word, or twice: %q", word)
		delete(known, word)
		read()
	}
}

// to is an option without a value.
func to[T any](field *T, value T) func() { return func() { *field = value } }

// of is an option with a value.
func of[T any](field *T, read func() T) func() { return func() { *field = read() } }

func (w *words) duration() time.Duration {
	s := w.next()
	d, err := time.ParseDuration(s)
	must(err == nil && d > 0 && d <= 100*24*time.Hour, "%q is no duration between 1ns and 2400h", s)
	return d
}

func (w *words) number(least, most int) int { return number(w.next(), least, most) }

func number(s string, least, most int) int {
	n, err := strconv.Atoi(s)
	must(err == nil && n >= least && n <= most, "%q is no number from %d to %d", s, least, most)
	return n
}

func (w *words) size() uint16 { return uint16(w.number(1, 65535)) }

func (w *words) qtype() uint16 {
	s := w.next()
	if n, ok := strings.CutPrefix(s, "TYPE"); ok {
		return uint16(number(n, 1, 65535))
	}
	t := one(dns.StringToType, s)
	must(t != dns.TypeNone, "%q is no type", s)
	return t
}

func (w *words) class() uint16 { return one(dns.StringToClass, w.next()) }
func (w *words) rcode() int    { return one(dns.StringToRcode, w.next()) }

func one[V any](of map[string]V, word string) V {
	v, ok := of[word]
	must(ok, "%q is unknown", word)
	return v
}

func (w *words) name() string { return parseName(w.next()) }

// parseName takes absolute names only: a forgotten dot is the commonest slip. It returns the name as it reads after packing and unpacking,
// which makes \032 and "\ " the same.
func parseName(s string) string {
	_, ok := dns.IsDomainName(s)
	must(ok && dns.IsFqdn(s), "%q is no name that ends with a dot", s)
	wire := make([]byte, 256)
	_, err := dns.PackDomainName(s, wire, 0, nil, false)
	must(err == nil, "name %q: %v", s, err)
	s, _, err = dns.UnpackDomainName(wire, 0)
	must(err == nil, "name %q: %v", s, err)
	return s
}

func (w *words) question() *dns.Question {
	return &dns.Question{Name: w.name(), Qtype: w.qtype(), Qclass: dns.ClassINET}
}

// expand makes "{1..3}" three strings.
func expand(s string) (all []string) {
	before, rest, found := strings.Cut(s, "{")
	if !found {
		return []string{s}
	}
	inner, after, found := strings.Cut(rest, "}")
	a, b, dots := strings.Cut(inner, "..")
	must(found && dots && !strings.Contains(after, "{"), "%q: write a range as {1..9}, once", s)
	from := number(a, 0, 1_000_000)
	for n := from; n <= number(b, from, from+20_000); n++ {
		all = append(all, before+strconv.Itoa(n)+after)
	}
	return all
}
