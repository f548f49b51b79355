package cache_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// choices are what a trial is made of: each byte is one decision. A fuzzer changes them one by one, and the fixed run
// takes them from a seeded generator.
type choices struct {
	data []byte
	at   int
}

func (c *choices) over() bool { return c.at >= len(c.data) }

// of decides between n things, of which the first is taken when no bytes are left.
func (c *choices) of(n int) int {
	if c.over() {
		return 0
	}
	b := int(c.data[c.at])
	c.at++
	return b % n
}

// one returns true in one of n cases.
func (c *choices) one(n int) bool { return c.of(n) == n-1 }

func pick[T any](c *choices, from ...T) T { return from[c.of(len(from))] }

// A world has few names, so that each is queried often and in all ways.
const worldNames = 4

// world is the state of a trial: what the upstream answers, written in the words of a scenario.
type world struct {
	choices *choices
	wild    bool            // the upstream also gives answers that it should not give
	age     [worldNames]int // how often a name was given up for a new one
	last    int             // the name that was queried last, with its type: it is queried again
	qtype   uint16
	history []line // everything that happened
}

// line is a line of the trial's scenario.
type line struct {
	name string // "": it is about all names
	text string
}

func (w *world) name(i int) string { return fmt.Sprintf("n%d-%d.example.", i, w.age[i]) }

func (w *world) note(name, format string, args ...any) {
	w.history = append(w.history, line{name, fmt.Sprintf(format, args...)})
}

// story is the trial as a scenario, with what concerns one name.
func (w *world) story(block, name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name    found by comparing\nsee     differential_test.go\n\n%s\n\n", block)
	begun, mood, wait := false, "", time.Duration(0)
	for _, l := range w.history {
		d, isWait := strings.CutPrefix(l.text, "wait ")
		switch {
		case isWait:
			if pause, err := time.ParseDuration(d); err == nil && begun {
				wait += pause
			}
			continue
		case l.name == "" && !begun:
			mood = l.text + "\n" // the last one before the story begins
			continue
		case l.name != "" && l.name != name:
			continue
		}
		if begun = true; wait > 0 {
			fmt.Fprintf(&b, "wait %v\n", wait)
			wait = 0
		}
		b.WriteString(mood + l.text + "\n")
		mood = ""
	}
	if wait > 0 {
		fmt.Fprintf(&b, "wait %v\n", wait)
	}
	return b.String()
}

var (
	worldTypes = []uint16{dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX, dns.TypeCNAME, dns.TypeANY, 65280}
	worldTTLs  = []int{60, 30, 60, 30, 10, 5, 20, 1, 0, 300, 3600, 86400, 4294967295}
)

// query chooses a name and a type, two times out of three those of last time.
func (w *world) question() (int, uint16) {
	if w.qtype == 0 || w.choices.of(3) == 0 {
		w.last, w.qtype = w.choices.of(worldNames), pick(w.choices, worldTypes...)
	}
	return w.last, w.qtype
}

func (w *world) ttl() int { return pick(w.choices, worldTTLs...) }

// data is a record's type and data for a query of type t.
func data(t uint16, n int) string {
	switch t {
	case dns.TypeAAAA:
		return fmt.Sprintf("AAAA 2001:db8::%d", n)
	case dns.TypeTXT:
		return fmt.Sprintf(`TXT "text %d"`, n)
	case dns.TypeMX:
		return fmt.Sprintf("MX %d mx.example.", n)
	case dns.TypeCNAME:
		return fmt.Sprintf("CNAME target%d.example.", n)
	case dns.TypeA, dns.TypeANY:
		return fmt.Sprintf("A 192.0.2.%d", n)
	}
	return fmt.Sprintf(`TYPE%d \# 1 %02x`, t, n)
}

// shape names what an upstream's answer can look like.
type shape struct {
	name  string
	wild  bool // an upstream should not answer so, or the answer must not be stored
	rcode string
	lines func(w *world, t uint16) []string
}

func soa(w *world) string {
	ttl := w.ttl()
	least := ttl
	if w.wild {
		least = w.ttl()
	}
	return fmt.Sprintf("authority example. %d IN SOA ns.example. host.example. 1 7200 900 1209600 %d", ttl, least)
}

func shapes() []shape {
	alias := func(w *world) []string {
		return []string{fmt.Sprintf("@ %d IN CNAME alias.example.", w.ttl())}
	}
	nothing := func(*world, uint16) []string { return nil }
	denied := func(w *world, _ uint16) []string { return []string{soa(w)} }
	return []shape{
		{"record", false, "NOERROR", func(w *world, t uint16) []string {
			return []string{fmt.Sprintf("@ %d IN %s", w.ttl(), data(t, 1+w.choices.of(3)))}
		}},
		{"set", false, "NOERROR", func(w *world, t uint16) []string {
			ttl := w.ttl()
			return []string{fmt.Sprintf("@ %d IN %s", ttl, data(t, 1)), fmt.Sprintf("@ %d IN %s", ttl, data(t, 2))}
		}},
		{"unequal set", true, "NOERROR", func(w *world, t uint16) []string {
			return []string{fmt.Sprintf("@ %d IN %s", w.ttl(), data(t, 1)), fmt.Sprintf("@ %d IN %s", w.ttl(), data(t, 2))}
		}},
		{"alias", false, "NOERROR", func(w *world, t uint16) []string {
			return append(alias(w), fmt.Sprintf("alias.example. %d IN %s", w.ttl(), data(t, 1)))
		}},
		{"open alias", true, "NOERROR", func(w *world, _ uint16) []string { return alias(w) }},
		{"alias of nothing", false, "NOERROR", func(w *world, _ uint16) []string { return append(alias(w), soa(w)) }},
		{"alias of no name", true, "NXDOMAIN", func(w *world, _ uint16) []string { return append(alias(w), soa(w)) }},
		{"other type", true, "NOERROR", func(w *world, _ uint16) []string {
			return []string{fmt.Sprintf("@ %d IN HINFO \"a\" \"b\"", w.ttl())}
		}},
		{"no data", false, "NOERROR", denied},
		{"no name", false, "NXDOMAIN", denied},
		{"no data, no SOA", true, "NOERROR", nothing},
		{"no name, no SOA", true, "NXDOMAIN", nothing},
		{"referral", true, "NOERROR", func(w *world, _ uint16) []string {
			return []string{fmt.Sprintf("authority example. %d IN NS ns.example.", w.ttl()), fmt.Sprintf("additional ns.example. %d IN A 192.0.2.53", w.ttl())}
		}},
		{"additional only", true, "NOERROR", func(w *world, _ uint16) []string {
			return []string{fmt.Sprintf("additional @ %d IN A 192.0.2.99", w.ttl())}
		}},
		{"full", false, "NOERROR", func(w *world, t uint16) []string {
			return []string{fmt.Sprintf("@ %d IN %s", w.ttl(), data(t, 1)), fmt.Sprintf("authority example. %d IN NS ns.example.", w.ttl()),
				fmt.Sprintf("additional ns.example. %d IN A 192.0.2.53", w.ttl())}
		}},
		{"signed", false, "NOERROR", func(w *world, t uint16) []string {
			ttl := w.ttl()
			return []string{fmt.Sprintf("@ %d IN %s", ttl, data(t, 1)),
				fmt.Sprintf("signed @ %d IN RRSIG A 13 2 60 20380101000000 19991231000000 1 example. c2ln", ttl)}
		}},
		{"expired", true, "NOERROR", func(w *world, t uint16) []string {
			ttl := w.ttl()
			return []string{fmt.Sprintf("@ %d IN %s", ttl, data(t, 1)),
				fmt.Sprintf("signed @ %d IN RRSIG A 13 2 60 20000102000000 19991231000000 1 example. c2ln", ttl)}
		}},
		{"large", false, "NOERROR", func(w *world, t uint16) []string {
			if t != dns.TypeTXT {
				return []string{fmt.Sprintf("@ %d IN %s", w.ttl(), data(t, 9))}
			}
			return []string{fmt.Sprintf(`@ %d IN TXT "number {1..40} of many"`, w.ttl())}
		}},
		{"SERVFAIL", false, "SERVFAIL", nothing},
		{"NOTIMP", false, "NOTIMP", nothing},
		{"REFUSED", false, "REFUSED", nothing},
		{"FORMERR", false, "FORMERR", nothing},
	}
}

// upstreamLines returns lines that make the upstream answer a query in a new way.
func (w *world) upstreamLines(name string, t uint16) []string {
	c := w.choices
	slow := pick(c, "", "", "", "", " slow 400ms", " slow 3s")
	if c.one(16) {
		return []string{fmt.Sprintf("upstream %s %s fails%s", name, dns.Type(t), slow)}
	}
	s := pick(c, shapes()...)
	for s.wild && !w.wild {
		s = shapes()[0]
	}
	flags := ""
	for _, f := range []string{" aa", " ad", " ra-", " cookie"} {
		if c.one(4) {
			flags += f
		}
	}
	if w.wild && c.one(24) {
		flags += " tc"
	}
	if w.wild && c.one(24) {
		flags += " instead " + name + " SRV"
	}
	out := []string{fmt.Sprintf("upstream %s %s answers %s%s%s", name, dns.Type(t), s.rcode, flags, slow)}
	for _, l := range s.lines(w, t) {
		out = append(out, "    "+l)
	}
	return out
}

// askLine makes a query.
func (w *world) askLine(name string, t uint16) string {
	c := w.choices
	if c.one(8) {
		name = strings.ToUpper(name)
	}
	flags := ""
	for _, f := range []string{" do", " cd", " ad", " rd-", " tcp"} {
		if c.one(12) && (w.wild || f != " rd-") {
			flags += f
		}
	}
	if size := pick(c, 0, 0, 1232, 512, 4096); size > 0 {
		flags += fmt.Sprintf(" edns %d", size)
	}
	return fmt.Sprintf("ask %s %s%s", name, dns.Type(t), flags)
}

func (w *world) wait() time.Duration {
	return pick(w.choices, time.Second, 2*time.Second, 300*time.Millisecond, 4500*time.Millisecond, 5*time.Second, 10*time.Second, 20*time.Second,
		30*time.Second, time.Second, 3*time.Second, 5*time.Second, time.Minute, 5*time.Minute, time.Hour)
}

func (w *world) moodLine() string {
	return "upstream " + pick(w.choices, "is well", "is well", "is well", "is well", "is well", "is well", "fails", "refuses", "is slow 300ms", "fails slow 2s")
}

// blocks are the configurations that both caches read.
func blocks() []string {
	return []string{
		"cache",
		"cache 30",
		"cache {\n    success 1024 600 0\n    denial 1024 300 0\n}",
		"cache {\n    prefetch 2 1m 20%\n}",
		"cache {\n    prefetch 1 10s 90%\n    servfail 30s\n}",
		"cache {\n    serve_stale 1h immediate 30s 30s\n}",
		"cache {\n    serve_stale 10m verify 0 30s 30s\n    success 1024 60 0\n}",
		"cache {\n    serve_stale 1h verify 200ms 30s 30s\n    prefetch 2 1m 10%\n}",
		"cache {\n    servfail 0\n}",
		"cache {\n    disable denial n1-0.example\n    disable success n2-0.example\n}",
	}
}
