package cache_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// upstream reads what follows "upstream": a mood of all of it, or what it does with some queries.
func (w *words) upstream(body []statement) (*rule, *mood) {
	if slices.Contains([]string{"fails", "refuses", "is"}, w.peek()) {
		must(len(body) == 0, "records belong to an upstream that answers")
		return nil, w.mood()
	}
	r := &rule{class: dns.ClassINET, name: w.next()}
	if suffix, wild := strings.CutPrefix(r.name, "*."); wild {
		r.name = "*." + strings.ToLower(parseName(suffix))
	} else if r.name != "*" {
		r.name = strings.ToLower(parseName(r.name))
	}
	if w.peek() != "answers" && w.peek() != "fails" {
		r.qtype = w.qtype()
	}
	known := map[string]func(){"slow": of(&r.slow, w.duration), "class": of(&r.class, w.class)}
	if word := w.next(); word == "answers" {
		r.reply = &upstreamReply{rcode: w.rcode(), ra: true}
		maps.Copy(known, map[string]func(){"aa": to(&r.reply.aa, true), "ad": to(&r.reply.ad, true), "tc": to(&r.reply.tc, true),
			"cookie": to(&r.reply.cookie, true), "ra-": to(&r.reply.ra, false), "instead": of(&r.instead, w.question)})
	} else {
		must(word == "fails" && len(body) == 0, "write answers, or fails without records")
	}
	w.options(known)
	for _, l := range body {
		r.reply.records = append(r.reply.records, parseRecords(l, false)...)
	}
	return r, nil
}

// mood reads "fails [slow D]", "refuses", "is slow D", "is well".
func (w *words) mood() *mood {
	m := new(mood)
	switch word := w.next(); {
	case word == "refuses":
		m.refuses = true
	case word == "fails" && len(*w) == 0:
		m.fails = true
	default:
		m.fails = word == "fails"
		state := w.next()
		must(state == "slow" || state == "well" && word == "is", "write fails, fails slow 5s, refuses, is slow 1s or is well")
		if state == "slow" {
			m.slow = w.duration()
		}
	}
	return m
}

// covers reports whether the rule is about a query.
func (r *rule) covers(q dns.Question) bool {
	name := strings.ToLower(q.Name)
	suffix, wild := strings.CutPrefix(r.name, "*")
	return (r.qtype == 0 || r.qtype == q.Qtype) && r.class == q.Qclass &&
		(r.name == name || wild && strings.HasSuffix(name, suffix))
}

// parseRecords reads one line of records: section and condition, then a record as in a zone file, "@" being the query's
// name and {1..9} a range. Expectations may write the TTL as a range of its own (20-30).
func parseRecords(l statement, expected bool) (all []record) {
	r, words := record{line: l.line}, l.words
	if words[0] == "signed" && !expected {
		r.signed, words = true, words[1:]
	}
	if len(words) > 0 {
		if i := slices.Index([]string{"", "authority", "additional"}, words[0]); i > 0 {
			r.section, words = i, words[1:]
		}
	}
	must(len(words) >= 4, "line %d: a record is owner, TTL, class, type and data", l.line)
	if words[0] != "@" {
		parseName(strings.NewReplacer("{", "", "}", "", "..", "").Replace(words[0]))
	}
	low, high, isRange := strings.Cut(words[1], "-")
	if !isRange {
		high = low
	}
	must(expected || !isRange, "a range of TTLs is for expectations")
	r.low = uint32(number(low, 0, 1<<32-1))
	r.high = uint32(number(high, int(r.low), 1<<32-1))
	texts := expand(strings.Join(append([]string{words[0], low}, words[2:]...), " "))
	for i, t := range texts {
		r.text = t
		if i == 0 || i == len(texts)-1 { // between the ends of a range only digits change
			r.check()
		}
		all = append(all, r)
	}
	return all
}

// check stops the parser unless the record can be read, and only "@" in it depends on the query.
func (r record) check() {
	here, there := r.rr("a.example."), r.rr("b.example.")
	there.Header().Name = here.Header().Name // an owner has its dot, or is "@": the caller has seen to it
	must(slices.Contains(strings.Fields(r.text)[1:], "@") || here.String() == there.String(), "%q: a name does not end with a dot", r.text)
}

// rr is the record in a reply to a query for name.
func (r record) rr(name string) dns.RR {
	zp := dns.NewZoneParser(strings.NewReader(r.text+"\n"), name, "")
	rr, ok := zp.Next()
	must(ok && zp.Err() == nil, "%q is no record: %v", r.text, zp.Err())
	_, more := zp.Next()
	must(!more && zp.Err() == nil, "%q is more than a record", r.text)
	_, err := dns.PackRR(rr, make([]byte, dns.Len(rr)), 0, nil, false)
	must(err == nil, "%q: %v", r.text, err)
	return rr
}

func (w *words) ask() *ask {
	a := &ask{names: expand(w.next()), qtype: w.qtype(), class: dns.ClassINET, rd: true, clients: 1}
	for i, n := range a.names {
		a.names[i] = parseName(n)
	}
	w.options(map[string]func(){"do": to(&a.do, true), "cd": to(&a.cd, true), "ad": to(&a.ad, true), "tcp": to(&a.tcp, true),
		"rd-": to(&a.rd, false), "and": of(&a.also, w.question), "class": of(&a.class, w.class), "edns": of(&a.edns, w.size),
		"id": of(&a.id, w.size), "opcode": func() { a.opcode = one(dns.StringToOpcode, w.next()) },
		"by": func() { a.clients = w.number(2, 1000) }})
	if a.do && a.edns == 0 {
		a.edns = 1232
	}
	return a
}

func (w *words) expectation(body []statement) *expectation {
	e := &expectation{ra: true}
	if w.peek() == "silence" {
		must(len(*w) == 1 && len(body) == 0, "silence has nothing more to say")
		e.silent = true
		return e
	}
	e.rcode = w.rcode()
	w.options(map[string]func(){"aa": to(&e.aa, true), "ad": to(&e.ad, true), "tc": to(&e.tc, true), "ra-": to(&e.ra, false),
		"within": of(&e.within, w.duration), "after": of(&e.after, w.duration), "from": func() {
			e.source = w.next()
			must(e.source == "cache" || e.source == "upstream", "from cache or from upstream, not from %q", e.source)
		}})
	for _, l := range body {
		e.nonEmpty = true
		if l.text == "..." {
			e.partial = true
			continue
		}
		e.records = append(e.records, parseRecords(l, true)...)
	}
	return e
}

// A number of queries is "N", "at least N" or "at most N", then a query or nothing.
func (w *words) asked() *upstreamQueries {
	a := &upstreamQueries{high: 1_000_000, class: dns.ClassINET}
	switch word := w.next(); {
	case word != "at":
		a.low = number(word, 0, 1_000_000)
		a.high = a.low
	case w.peek() == "least":
		w.next()
		a.low = w.number(1, 1_000_000)
	default:
		must(w.next() == "most", "at least or at most?")
		a.high = w.number(0, 1_000_000)
	}
	if len(*w) > 0 {
		a.name, a.qtype = strings.ToLower(w.name()), w.qtype()
		w.options(map[string]func(){"class": of(&a.class, w.class)})
	}
	return a
}

func (w *words) restart() *restart {
	r := new(restart)
	w.options(map[string]func(){"cold": to(&r.cold, true), "reboot": to(&r.boot, true), "after": of(&r.after, w.duration),
		"back": of(&r.back, w.duration)})
	return r
}
