package cache_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestScenarioFaults shows what the parser says about slips of the pen: where, and what.
func TestScenarioFaults(t *testing.T) {
	const head, ask = "name n\nsee s\ncache\n", "ask a.example. A\nexpect NOERROR\n"
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", "f:1: no name"},
		{"no name first", "see s\n", `f:1: a scenario begins with its name, not with "see"`},
		{"a name that says nothing", "name\n", "f:1: name says nothing"},
		{"two names", "name a\nname b\n", "f:2: a second name"},
		{"no see", "name n\ncache\n" + ask, "f:4: no see"},
		{"no block", "name n\nsee s\n", "f:2: no cache block"},
		{"a step before the block", "name n\nsee s\nwait 1s\n", `f:3: "wait" before the cache block`},
		{"nothing expected", head + "ask a.example. A\n", "f:4: nothing is expected"},
		{"unknown word", head + "wiat 1s\n", `f:4: unknown word "wiat"`},
		{"indented first line", "  name n\n", "f:1: an indented line"},
		{"block left open", "name n\nsee s\ncache {\n    prefetch 1\nask a. A\n", "f:5: the block above is not closed"},
		{"block left open at the end", "name n\nsee s\ncache {\n", "f:4: the last block is not closed"},
		{"lines below a line that takes none", head + "wait 1s\n    x\n", `f:4: "wait" takes no lines below it (line 5)`},
		{"no duration", head + "wait soon\n", `f:4: "soon" is no duration`},
		{"negative duration", head + "wait -1s\n", `f:4: "-1s" is no duration`},
		{"two durations", head + "wait 1s 2s\n", "f:4: wait takes one duration"},
		{"ask without type", head + "ask a.example.\n", "f:4: ask takes a name and a type"},
		{"ask with a bad type", head + "ask a.example. QQ\n", `f:4: "QQ" is no type`},
		{"name without its dot", head + "ask a.example A\n", `f:4: "a.example" is no name that ends with a dot`},
		{"label too long", head + "ask " + strings.Repeat("a", 64) + ". A\n", "f:4: "},
		{"ask with an unknown word", head + "ask a.example. A dnssec\n", `f:4: unknown word "dnssec"`},
		{"a flag twice", head + "ask a.example. A do do\n", `f:4: "do" twice`},
		{"a value left out", head + "ask a.example. A edns\n", `f:4: unknown word "edns"`},
		{"range downwards", head + "ask n{9..1}.example. A\n", "f:4: "},
		{"range too long", head + "ask n{1..30000}.example. A\n", "f:4: "},
		{"range without its end", head + "ask n{1.example. A\n", "f:4: "},
		{"expect without ask", head + "expect NOERROR\n", "f:4: expect stands below ask"},
		{"expect after something else", head + "ask a.example. A\nwait 1s\nexpect NOERROR\n", "f:6: expect stands below ask"},
		{"two expects", head + ask + "expect NOERROR\n", "f:6: a second expect"},
		{"expect nothing", head + "ask a.example. A\nexpect\n", "f:5: expect what?"},
		{"expect a bad code", head + "ask a.example. A\nexpect FINE\n", `f:5: "FINE" is no response code`},
		{"expect from elsewhere", head + "ask a.example. A\nexpect NOERROR from heaven\n", "f:5: from cache or from upstream"},
		{"silence with records", head + "ask a.example. A\nexpect silence\n    ...\n", "f:5: silence has nothing more"},
		{"record too short", head + "ask a.example. A\nexpect NOERROR\n    @ 60 A\n", "f:5: line 6: a record is owner"},
		{"record that cannot be read", head + "ask a.example. A\nexpect NOERROR\n    @ 60 IN A 192.0.2.256\n", "f:5: line 6: "},
		{"record with a name without its dot", head + "ask a.example. A\nexpect NOERROR\n    @ 60 IN CNAME b.example\n", "does not end with a dot"},
		{"owner without its dot", head + "ask a.example. A\nexpect NOERROR\n    b.example 60 IN A 192.0.2.1\n", "f:5: line 6: "},
		{"TTL that is none", head + "ask a.example. A\nexpect NOERROR\n    @ soon IN A 192.0.2.1\n", `"soon" is no TTL`},
		{"TTLs the wrong way round", head + "ask a.example. A\nexpect NOERROR\n    @ 9-1 IN A 192.0.2.1\n", `"9-1" is no TTL`},
		{"range of TTLs from the upstream", head + "upstream a.example. A answers NOERROR\n    @ 1-9 IN A 192.0.2.1\n", "is for expectations"},
		{"upstream does nothing", head + "upstream\n", "f:4: upstream does what?"},
		{"upstream does something else", head + "upstream a.example. A sleeps\n", "f:4: write answers or fails"},
		{"upstream in a bad mood", head + "upstream is tired\n", "write fails, fails slow 5s"},
		{"upstream fails with records", head + "upstream fails\n    @ 60 IN A 192.0.2.1\n", "records belong to an upstream that answers"},
		{"asked how often", head + "asked\n", "f:4: asked how often?"},
		{"asked what", head + "asked 1 a.example.\n", "f:4: asked takes a number"},
		{"coredns differs below nothing", head + "coredns differs: so\n", "f:4: coredns differs: stands below"},
		{"coredns differs below a wait", head + ask + "wait 1s\ncoredns differs: so\n", "f:7: coredns differs: stands below an expectation"},
		{"coredns differs without why", head + ask + "coredns differs:\n", "and why"},
		{"coredns agrees", head + ask + "coredns agrees: no\n", `not "agrees:"`},
		{"reload of something else", head + "reload forward\n", "reload takes a cache block"},
		{"restart somehow", head + "restart gently now\n", `unknown word "gently"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sc, err := parseScenario("f", tc.text)
			if err == nil {
				t.Fatalf("no error, and %d steps", len(sc.steps))
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("want %q in %q", tc.want, err)
			}
		})
	}
}

// TestScenarioCanFail plays stories that are not true, so that an expectation is known to be one.
func TestScenarioCanFail(t *testing.T) {
	const story = `name n
see s
cache
upstream www.example. A answers NOERROR ad
    @ 60 IN A 192.0.2.1
ask www.example. A
expect NOERROR
    @ 60 IN A 192.0.2.1
ask www.example. A ad
expect NOERROR ad from cache within 1ms
    @ 60 IN A 192.0.2.1
asked 1 www.example. A
`
	sc, err := parseScenario("true", story)
	if err != nil {
		t.Fatal(err)
	}
	if failed := play(t, sc, stock()); len(failed) != 0 {
		t.Fatalf("the true story fails: %v", failed)
	}
	for _, tc := range []struct{ name, old, lie, want string }{
		{"code", "expect NOERROR\n", "expect NXDOMAIN\n", "want NXDOMAIN, got NOERROR"},
		{"flag wanted", "expect NOERROR\n", "expect NOERROR aa\n", "want aa true, got false"},
		{"flag not wanted", "NOERROR ad from", "NOERROR from", "want ad false, got true"},
		{"from upstream", "from cache", "from upstream", "want an answer from the upstream"},
		{"from cache", "expect NOERROR\n", "expect NOERROR from cache\n", "want an answer from the cache"},
		{"sooner", "expect NOERROR\n", "expect NOERROR within 1us\n", "want an answer within 1µs"},
		{"later", "within 1ms", "after 1ms", "want an answer after 1ms"},
		{"TTL", "expect NOERROR\n    @ 60", "expect NOERROR\n    @ 59", "its TTL is 60"},
		{"data", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR\n    @ 60 IN A 192.0.2.2", "unexpected record"},
		{"more records", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR\n    @ 60 IN A 192.0.2.1\n    @ 60 IN A 192.0.2.2", "want @ 60 IN A 192.0.2.2"},
		{"fewer records", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR", "unexpected record"},
		{"silence", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect silence", "a reply"},
		{"asked", "asked 1", "asked 2", "the upstream was asked 1 times"},
		{"asked at least", "asked 1", "asked at least 2", "the upstream was asked 1 times"},
		{"asked at most", "asked 1", "asked at most 0", "the upstream was asked 1 times"},
		{"a question out of the script", "ask www.example. A ad", "ask ftp.example. A ad", "of which the scenario says nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(story, tc.old) {
				t.Fatalf("no %q in the story", tc.old)
			}
			sc, err := parseScenario("lie", strings.Replace(story, tc.old, tc.lie, 1))
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for i, errs := range play(t, sc, stock()) {
				all = append(all, told(sc, sc.steps[i], errs))
			}
			if text := strings.Join(all, "\n"); !strings.Contains(text, tc.want) {
				t.Fatalf("want %q in:\n%s", tc.want, text)
			}
		})
	}
}

// FuzzScenario feeds the parser. It never panics; what it refuses, it refuses by file and line; what it takes has
// everything that the runner relies on.
func FuzzScenario(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "scenarios", "*.txt"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no scenarios: %v", err)
	}
	for _, name := range files {
		if strings.Contains(name, "capacity") {
			continue // thousands of names to read, and nothing in them that the others lack
		}
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	place := regexp.MustCompile(`^f:[1-9][0-9]*: .`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 10_000 {
			return
		}
		sc, err := parseScenario("f", text)
		if err != nil {
			if !place.MatchString(err.Error()) {
				t.Fatalf("error without a place: %q", err)
			}
			return
		}
		if sc.name == "" || sc.see == "" || sc.block == "" {
			t.Fatalf("incomplete: %+v", sc)
		}
		line := 0
		for _, s := range sc.steps {
			if s.line <= line {
				t.Fatalf("line %d after line %d", s.line, line)
			}
			line = s.line
			kinds := 0
			for _, is := range []bool{s.upstream != nil, s.mood != nil, s.ask != nil, s.asked != nil, s.wait > 0, s.reload != "", s.restart != nil} {
				if is {
					kinds++
				}
			}
			if kinds != 1 {
				t.Fatalf("line %d is %d kinds of step", s.line, kinds)
			}
			if s.ask != nil {
				for _, n := range s.ask.names {
					if _, err := s.ask.message(n, 1).Pack(); err != nil {
						t.Fatalf("line %d: question that cannot be sent: %v", s.line, err)
					}
				}
			}
			if s.upstream != nil && s.upstream.reply != nil {
				m := (&ask{qtype: 1, class: 1}).message("a.example.", 1)
				if _, err := s.upstream.message(m); err != nil && !strings.Contains(err.Error(), "overflow") && !strings.Contains(err.Error(), "size") {
					t.Fatalf("line %d: reply that cannot be sent: %v", s.line, err)
				}
			}
		}
	})
}
