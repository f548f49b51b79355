package cache_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// parseUpstream reads what follows "upstream": a mood of all of it, or what it does with some queries.
func parseUpstream(words []string, body []statement) (*rule, *mood, error) {
	if len(words) == 0 {
		return nil, nil, fmt.Errorf("upstream does what?")
	}
	switch words[0] {
	case "fails", "refuses", "is":
		if len(body) > 0 {
			return nil, nil, fmt.Errorf("records belong to an upstream that answers")
		}
		m, err := parseMood(words)
		return nil, m, err
	}
	r := &rule{class: dns.ClassINET}
	if err := r.question(words[0]); err != nil {
		return nil, nil, err
	}
	words = words[1:]
	if len(words) > 0 && words[0] != "answers" && words[0] != "fails" {
		t, err := parseType(words[0])
		if err != nil {
			return nil, nil, err
		}
		r.qtype, words = t, words[1:]
	}
	if len(words) == 0 {
		return nil, nil, fmt.Errorf("write answers or fails")
	}
	switch words[0] {
	case "answers":
		return r, nil, r.answers(words[1:], body)
	case "fails":
		if len(body) > 0 {
			return nil, nil, fmt.Errorf("records belong to an upstream that answers")
		}
		return r, nil, options(words[1:], r.option)
	}
	return nil, nil, fmt.Errorf("write answers or fails, not %q", words[0])
}

// parseMood reads "fails [slow D]", "refuses", "is slow D", "is well".
func parseMood(words []string) (*mood, error) {
	text := strings.Join(words, " ")
	switch {
	case text == "fails":
		return &mood{fails: true}, nil
	case text == "refuses":
		return &mood{refuses: true}, nil
	case text == "is well":
		return &mood{}, nil
	case len(words) == 3 && words[1] == "slow" && (words[0] == "is" || words[0] == "fails"):
		d, err := parseDuration(words[2])
		return &mood{fails: words[0] == "fails", slow: d}, err
	}
	return nil, fmt.Errorf("upstream %q: write fails, fails slow 5s, refuses, is slow 1s or is well", text)
}

func (r *rule) question(name string) error {
	if name == "*" {
		r.name = name
		return nil
	}
	suffix, wild := strings.CutPrefix(name, "*.")
	suffix, err := parseName(suffix)
	if r.name = strings.ToLower(suffix); wild {
		r.name = "*." + r.name
	}
	return err
}

// covers reports whether the rule is about a query.
func (r *rule) covers(q dns.Question) bool {
	name := strings.ToLower(q.Name)
	suffix, wild := strings.CutPrefix(r.name, "*")
	return (r.qtype == 0 || r.qtype == q.Qtype) && r.class == q.Qclass &&
		(r.name == name || wild && strings.HasSuffix(name, suffix))
}

func (r *rule) answers(words []string, body []statement) error {
	if len(words) == 0 {
		return fmt.Errorf("answers what? Write a response code")
	}
	rcode, err := parseRcode(words[0])
	if err != nil {
		return err
	}
	r.reply = &upstreamReply{rcode: rcode, ra: true}
	if err := options(words[1:], r.option); err != nil {
		return err
	}
	for _, l := range body {
		records, err := parseRecords(l, false)
		if err != nil {
			return fmt.Errorf("line %d: %w", l.line, err)
		}
		r.reply.records = append(r.reply.records, records...)
	}
	return nil
}

func (r *rule) option(word string, next func() (string, error)) error {
	switch word {
	case "slow", "class":
		v, err := next()
		if err != nil {
			return err
		}
		if word == "slow" {
			r.slow, err = parseDuration(v)
		} else {
			r.class, err = parseClass(v)
		}
		return err
	}
	if r.reply == nil {
		return fmt.Errorf("unknown word %q", word)
	}
	switch word {
	case "aa":
		return set(&r.reply.aa, word)
	case "ad":
		return set(&r.reply.ad, word)
	case "tc":
		return set(&r.reply.tc, word)
	case "cookie":
		return set(&r.reply.cookie, word)
	case "ra-":
		r.reply.ra = false
	case "instead":
		q, err := parseQuestion(next)
		r.instead = q
		return err
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

func parseQuestion(next func() (string, error)) (*dns.Question, error) {
	name, err := next()
	if err != nil {
		return nil, err
	}
	word, err := next()
	if err != nil {
		return nil, err
	}
	if name, err = parseName(name); err != nil {
		return nil, err
	}
	t, err := parseType(word)
	return &dns.Question{Name: name, Qtype: t, Qclass: dns.ClassINET}, err
}

// parseRecords reads one line of records: section and condition, then a record as in a zone file, "@" being the query's
// name and {1..9} a range. Expectations may write the TTL as a range of its own (20-30).
func parseRecords(l statement, expected bool) ([]record, error) {
	r := record{line: l.line}
	words := l.words
	if words[0] == "signed" && !expected {
		r.signed, words = true, words[1:]
	}
	if len(words) > 0 {
		if i := slices.Index([]string{"", "authority", "additional"}, words[0]); i > 0 {
			r.section, words = i, words[1:]
		}
	}
	if len(words) < 4 {
		return nil, fmt.Errorf("a record is owner, TTL, class, type and data")
	}
	if words[0] != "@" {
		if _, err := parseName(strings.NewReplacer("{", "", "}", "", "..", "").Replace(words[0])); err != nil {
			return nil, err
		}
	}
	low, high, isRange := strings.Cut(words[1], "-")
	if !isRange {
		high = low
	} else if !expected {
		return nil, fmt.Errorf("a range of TTLs is for expectations")
	}
	l0, err1 := parseNumber(low, 0, 1<<32-1)
	h0, err2 := parseNumber(high, 0, 1<<32-1)
	if err1 != nil || err2 != nil || h0 < l0 {
		return nil, fmt.Errorf("%q is no TTL", words[1])
	}
	r.low, r.high = uint32(l0), uint32(h0)
	texts, err := expand(strings.Join(append([]string{words[0], low}, words[2:]...), " "))
	if err != nil {
		return nil, err
	}
	all := make([]record, 0, len(texts))
	for i, t := range texts {
		r.text = t
		// Between the ends of a range only digits change.
		if i == 0 || i == len(texts)-1 {
			if err := r.check(); err != nil {
				return nil, err
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// check returns an error unless the record can be read, and only "@" in it depends on the query.
func (r record) check() error {
	here, err := r.rr("a.example.")
	if err != nil {
		return err
	}
	there, err := r.rr("b.example.")
	if err != nil {
		return err
	}
	there.Header().Name = here.Header().Name // an owner has its dot, or is "@": the caller has seen to it
	if !slices.Contains(strings.Fields(r.text)[1:], "@") && here.String() != there.String() {
		return fmt.Errorf("%q: a name does not end with a dot", r.text)
	}
	return nil
}

// rr is the record in a reply to a query for name.
func (r record) rr(name string) (dns.RR, error) {
	zp := dns.NewZoneParser(strings.NewReader(r.text+"\n"), name, "")
	rr, ok := zp.Next()
	if err := zp.Err(); err != nil {
		return nil, fmt.Errorf("%q: %w", r.text, err)
	}
	if !ok {
		return nil, fmt.Errorf("%q is no record", r.text)
	}
	if _, ok := zp.Next(); ok || zp.Err() != nil {
		return nil, fmt.Errorf("%q is more than a record", r.text)
	}
	if _, err := dns.PackRR(rr, make([]byte, dns.Len(rr)), 0, nil, false); err != nil {
		return nil, fmt.Errorf("%q: %w", r.text, err)
	}
	return rr, nil
}

func parseAsk(words []string) (*ask, error) {
	if len(words) < 2 {
		return nil, fmt.Errorf("ask takes a name and a type")
	}
	a := &ask{class: dns.ClassINET, rd: true, clients: 1}
	var err error
	if a.names, err = expand(words[0]); err != nil {
		return nil, err
	}
	for i, n := range a.names {
		if a.names[i], err = parseName(n); err != nil {
			return nil, err
		}
	}
	if a.qtype, err = parseType(words[1]); err != nil {
		return nil, err
	}
	if err := options(words[2:], a.option); err != nil {
		return nil, err
	}
	if a.do && a.edns == 0 {
		a.edns = 1232
	}
	return a, nil
}

func (a *ask) option(word string, next func() (string, error)) error {
	switch word {
	case "do":
		return set(&a.do, word)
	case "cd":
		return set(&a.cd, word)
	case "ad":
		return set(&a.ad, word)
	case "tcp":
		return set(&a.tcp, word)
	case "rd-":
		a.rd = false
		return nil
	case "and":
		q, err := parseQuestion(next)
		a.also = q
		return err
	}
	v, err := next()
	if err != nil {
		return fmt.Errorf("unknown word %q", word)
	}
	var n int
	switch word {
	case "class":
		a.class, err = parseClass(v)
	case "opcode":
		code, ok := dns.StringToOpcode[v]
		if !ok {
			return fmt.Errorf("%q is no opcode", v)
		}
		a.opcode = code
	case "edns":
		n, err = parseNumber(v, 1, 65535)
		a.edns = uint16(n)
	case "id":
		n, err = parseNumber(v, 1, 65535)
		a.id = uint16(n)
	case "by":
		a.clients, err = parseNumber(v, 2, 1000)
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return err
}

func parseExpect(st statement) (*expectation, error) {
	e := &expectation{line: st.line, ra: true}
	words := st.words[1:]
	if len(words) == 0 {
		return nil, fmt.Errorf("expect what? Write a response code, or silence")
	}
	if words[0] == "silence" {
		if len(words) > 1 || len(st.body) > 0 {
			return nil, fmt.Errorf("silence has nothing more to say")
		}
		e.silent = true
		return e, nil
	}
	var err error
	if e.rcode, err = parseRcode(words[0]); err != nil {
		return nil, err
	}
	if err := options(words[1:], e.option); err != nil {
		return nil, err
	}
	for _, l := range st.body {
		e.nonEmpty = true
		if l.text == "..." {
			e.partial = true
			continue
		}
		records, err := parseRecords(l, true)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
		e.records = append(e.records, records...)
	}
	return e, nil
}

func (e *expectation) option(word string, next func() (string, error)) error {
	switch word {
	case "aa":
		return set(&e.aa, word)
	case "ad":
		return set(&e.ad, word)
	case "tc":
		return set(&e.tc, word)
	case "ra-":
		e.ra = false
		return nil
	}
	v, err := next()
	if err != nil {
		return fmt.Errorf("unknown word %q", word)
	}
	switch word {
	case "from":
		if v != "cache" && v != "upstream" {
			return fmt.Errorf("from cache or from upstream, not from %q", v)
		}
		e.source = v
	case "within":
		e.within, err = parseDuration(v)
	case "after":
		e.after, err = parseDuration(v)
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return err
}

// parseAsked reads "N", "at least N" or "at most N" or "N to M", then a query or nothing.
func parseAsked(words []string) (*upstreamQueries, error) {
	a := &upstreamQueries{high: 1_000_000, class: dns.ClassINET}
	var err error
	switch {
	case len(words) >= 3 && words[0] == "at" && words[1] == "least":
		a.low, err = parseNumber(words[2], 1, 1_000_000)
		words = words[3:]
	case len(words) >= 3 && words[0] == "at" && words[1] == "most":
		a.high, err = parseNumber(words[2], 0, 1_000_000)
		words = words[3:]
	case len(words) >= 1:
		a.low, err = parseNumber(words[0], 0, 1_000_000)
		a.high = a.low
		words = words[1:]
	default:
		return nil, fmt.Errorf("asked how often?")
	}
	if err != nil {
		return nil, err
	}
	switch len(words) {
	case 0:
		return a, nil
	case 4:
		if words[2] != "class" {
			return nil, fmt.Errorf("unknown word %q", words[2])
		}
		if a.class, err = parseClass(words[3]); err != nil {
			return nil, err
		}
	case 2:
	default:
		return nil, fmt.Errorf("asked takes a number, then a name and a type or nothing")
	}
	if a.name, err = parseName(words[0]); err != nil {
		return nil, err
	}
	a.name = strings.ToLower(a.name)
	a.qtype, err = parseType(words[1])
	return a, err
}

func parseRestart(words []string) (*restart, error) {
	r := new(restart)
	return r, options(words, func(word string, next func() (string, error)) error {
		switch word {
		case "cold":
			return set(&r.cold, word)
		case "reboot":
			return set(&r.boot, word)
		}
		v, err := next()
		if err != nil {
			return fmt.Errorf("unknown word %q", word)
		}
		switch word {
		case "after":
			r.after, err = parseDuration(v)
		case "back":
			r.back, err = parseDuration(v)
		default:
			return fmt.Errorf("unknown word %q", word)
		}
		return err
	})
}
