package cache_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestScenarioCanFail plays scenarios with wrong expectations, which must fail. TestScenariosCoreDNS has others: about the source of an
// answer, TTLs and counts.
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
	testutil.Must(t, err)
	if failed := play(t, sc, stock()); len(failed) != 0 {
		t.Fatalf("the true story fails: %v", failed)
	}
	for _, tc := range []struct{ name, old, lie, want string }{
		{"code", "expect NOERROR\n", "expect NXDOMAIN\n", "want NXDOMAIN, got NOERROR"},
		{"flag wanted", "expect NOERROR\n", "expect NOERROR aa\n", "want aa true, got false"},
		{"flag not wanted", "NOERROR ad from", "NOERROR from", "want ad false, got true"},
		{"sooner", "expect NOERROR\n", "expect NOERROR within 1us\n", "want an answer within 1µs"},
		{"later", "within 1ms", "after 1ms", "want an answer after 1ms"},
		{"data", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR\n    @ 60 IN A 192.0.2.2", "unexpected record"},
		{"more records", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR\n    @ 60 IN A 192.0.2.1\n    @ 60 IN A 192.0.2.2", "want @ 60 IN A 192.0.2.2"},
		{"fewer records", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect NOERROR", "unexpected record"},
		{"silence", "expect NOERROR\n    @ 60 IN A 192.0.2.1", "expect silence", "a reply"},
		{"a question out of the script", "ask www.example. A ad", "ask ftp.example. A ad", "of which the scenario says nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(story, tc.old) {
				t.Fatalf("no %q in the story", tc.old)
			}
			sc, err := parseScenario("lie", strings.Replace(story, tc.old, tc.lie, 1))
			testutil.Must(t, err)
			var all []string
			for i, errs := range play(t, sc, stock()) {
				all = append(all, describe(sc, sc.steps[i], errs))
			}
			if text := strings.Join(all, "\n"); !strings.Contains(text, tc.want) {
				t.Fatalf("want %q in:\n%s", tc.want, text)
			}
		})
	}
}
