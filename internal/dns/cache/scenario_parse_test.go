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
	line       int
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
	words []string
	text  string
	body  []statement
}

// parseError is a fault of a file.
type parseError struct {
	file string
	line int
	err  error
}

func (e *parseError) Error() string { return fmt.Sprintf("%s:%d: %v", e.file, e.line, e.err) }
func (e *parseError) Unwrap() error { return e.err }

// parseScenario reads one file.
func parseScenario(file, text string) (*scenario, error) {
	sc := &scenario{file: file}
	fault := func(line int, format string, args ...any) error {
		return &parseError{file, line, fmt.Errorf(format, args...)}
	}
	statements, line, err := split(text)
	if err != nil {
		return nil, fault(line, "%w", err)
	}
	for i, st := range statements {
		if i == 0 && st.words[0] != "name" {
			return nil, fault(st.line, "a scenario begins with its name, not with %q", st.words[0])
		}
		if err := sc.statement(st); err != nil {
			return nil, fault(st.line, "%w", err)
		}
	}
	last := max(1, strings.Count(text, "\n"))
	switch {
	case sc.name == "":
		return nil, fault(last, "no name")
	case sc.see == "":
		return nil, fault(last, "no see: name the RFC section or the reason")
	case sc.block == "":
		return nil, fault(last, "no cache block")
	}
	if !slices.ContainsFunc(sc.steps, func(s step) bool { return s.asked != nil || s.ask != nil && s.ask.want != nil }) {
		return nil, fault(last, "nothing is expected")
	}
	return sc, nil
}

// split makes statements of lines. A block in braces belongs to the line that opens it.
func split(text string) (all []statement, line int, err error) {
	open := false
	for i, raw := range strings.Split(text, "\n") {
		line = i + 1
		raw = strings.TrimRight(raw, " \t\r")
		trimmed := strings.TrimLeft(raw, " \t")
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		st := statement{line: line, words: strings.Fields(trimmed), text: trimmed}
		switch {
		case open && raw == "}":
			open = false
		case trimmed != raw && len(all) == 0:
			return nil, line, fmt.Errorf("an indented line belongs below another")
		case trimmed != raw:
			last := &all[len(all)-1]
			last.body = append(last.body, st)
		case open:
			return nil, line, fmt.Errorf("the block above is not closed")
		default:
			all = append(all, st)
			open = strings.HasSuffix(trimmed, "{")
		}
	}
	if open {
		return nil, line, fmt.Errorf("the last block is not closed")
	}
	return all, line, nil
}

func (sc *scenario) statement(st statement) error {
	words, rest := st.words[1:], strings.TrimSpace(strings.TrimPrefix(st.text, st.words[0]))
	first := st.words[0]
	if len(st.body) > 0 && !slices.Contains([]string{"cache", "reload", "upstream", "expect"}, first) {
		return fmt.Errorf("%q takes no lines below it (line %d)", first, st.body[0].line)
	}
	s := step{line: st.line, text: st.text}
	var err error
	switch first {
	case "name":
		return once(&sc.name, first, rest)
	case "see":
		return once(&sc.see, first, rest)
	case "cache":
		return once(&sc.block, first, block(st, st.text))
	case "coredns":
		return sc.coredns(words)
	case "upstream":
		s.upstream, s.mood, err = parseUpstream(words, st.body)
	case "ask":
		s.ask, err = parseAsk(words)
	case "expect":
		return sc.expect(st)
	case "wait":
		if len(words) != 1 {
			return fmt.Errorf("wait takes one duration")
		}
		s.wait, err = parseDuration(words[0])
	case "asked":
		s.asked, err = parseAsked(words)
	case "reload":
		if len(words) == 0 || words[0] != "cache" {
			return fmt.Errorf("reload takes a cache block")
		}
		s.reload = block(st, rest)
	case "restart":
		s.restart, err = parseRestart(words)
	default:
		return fmt.Errorf("unknown word %q", first)
	}
	if err != nil {
		return err
	}
	if sc.block == "" {
		return fmt.Errorf("%q before the cache block", first)
	}
	sc.steps = append(sc.steps, s)
	return nil
}

func once(to *string, word, value string) error {
	switch {
	case *to != "":
		return fmt.Errorf("a second %s", word)
	case value == "":
		return fmt.Errorf("%s says nothing", word)
	}
	*to = value
	return nil
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

// coredns reads "coredns differs: why" and "coredns lacks: why".
func (sc *scenario) coredns(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("write %q or %q and why", "coredns differs:", "coredns lacks:")
	}
	why := strings.Join(words[1:], " ")
	switch words[0] {
	case "lacks:":
		return once(&sc.lacks, "coredns lacks:", why)
	case "differs:":
		if len(sc.steps) == 0 {
			return fmt.Errorf("coredns differs: stands below an expectation")
		}
		last := &sc.steps[len(sc.steps)-1]
		if last.asked == nil && (last.ask == nil || last.ask.want == nil) {
			return fmt.Errorf("coredns differs: stands below an expectation, not below %q", last.text)
		}
		return once(&last.differs, "coredns differs:", why)
	}
	return fmt.Errorf("write %q or %q, not %q", "coredns differs:", "coredns lacks:", words[0])
}

func (sc *scenario) expect(st statement) error {
	if len(sc.steps) == 0 || sc.steps[len(sc.steps)-1].ask == nil {
		return fmt.Errorf("expect stands below ask")
	}
	a := sc.steps[len(sc.steps)-1].ask
	if a.want != nil {
		return fmt.Errorf("a second expect for one ask")
	}
	want, err := parseExpect(st)
	if err != nil {
		return err
	}
	a.want = want
	return nil
}

// options calls option for each word; an option takes the words after it by calling next.
func options(words []string, option func(word string, next func() (string, error)) error) error {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		next := func() (string, error) {
			if len(words) == 0 {
				return "", fmt.Errorf("%q needs a value", word)
			}
			v := words[0]
			words = words[1:]
			return v, nil
		}
		if err := option(word, next); err != nil {
			return err
		}
	}
	return nil
}

func set(flag *bool, word string) error {
	if *flag {
		return fmt.Errorf("%q twice", word)
	}
	*flag = true
	return nil
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > 100*24*time.Hour {
		return 0, fmt.Errorf("%q is no duration between 1ns and 2400h", s)
	}
	return d, nil
}

func parseNumber(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%q is no number from %d to %d", s, least, most)
	}
	return n, nil
}

func parseType(s string) (uint16, error) {
	if t, ok := dns.StringToType[s]; ok && t != dns.TypeNone {
		return t, nil
	}
	if n, ok := strings.CutPrefix(s, "TYPE"); ok {
		v, err := parseNumber(n, 1, 65535)
		return uint16(v), err
	}
	return 0, fmt.Errorf("%q is no type", s)
}

func parseClass(s string) (uint16, error) {
	if c, ok := dns.StringToClass[s]; ok {
		return c, nil
	}
	return 0, fmt.Errorf("%q is no class", s)
}

func parseRcode(s string) (int, error) {
	if r, ok := dns.StringToRcode[s]; ok {
		return r, nil
	}
	return 0, fmt.Errorf("%q is no response code", s)
}

// parseName takes absolute names only: a forgotten dot is the commonest slip. It returns the name as it reads after packing and unpacking,
// which makes \032 and "\ " the same.
func parseName(s string) (string, error) {
	if _, ok := dns.IsDomainName(s); !ok || !dns.IsFqdn(s) {
		return "", fmt.Errorf("%q is no name that ends with a dot", s)
	}
	wire := make([]byte, 256)
	if _, err := dns.PackDomainName(s, wire, 0, nil, false); err != nil {
		return "", fmt.Errorf("name %q: %w", s, err)
	}
	s, _, err := dns.UnpackDomainName(wire, 0)
	return s, err
}

// expand makes "{1..3}" three strings.
func expand(s string) ([]string, error) {
	before, rest, found := strings.Cut(s, "{")
	if !found {
		return []string{s}, nil
	}
	inner, after, found := strings.Cut(rest, "}")
	a, b, dots := strings.Cut(inner, "..")
	if !found || !dots {
		return nil, fmt.Errorf("%q: write a range as {1..9}", s)
	}
	from, err1 := parseNumber(a, 0, 1_000_000)
	to, err2 := parseNumber(b, 0, 1_000_000)
	if err1 != nil || err2 != nil || to < from || to-from >= 20_000 || strings.Contains(after, "{") {
		return nil, fmt.Errorf("%q: a range goes up, by at most 20000, once", s)
	}
	all := make([]string, 0, to-from+1)
	for n := from; n <= to; n++ {
		all = append(all, before+strconv.Itoa(n)+after)
	}
	return all, nil
}
