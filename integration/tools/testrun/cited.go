package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/neardns/neardns/integration/cited"
)

// citedTests returns the tests that the pages name as evidence and that this run has to run: those of its packages, its build tags and its
// pattern of names. Another target runs the others, and holds them in the same way.
func citedTests(o options, packages []string) (out []cited.Test, err error) {
	if o.cited == "" {
		return nil, nil
	}
	var text []byte
	for page := range strings.SplitSeq(o.cited, ",") {
		more, err := os.ReadFile(page)
		if err != nil {
			return nil, fmt.Errorf("read cited tests: %w", err)
		}
		text = append(text, more...)
	}
	matches, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	ran := map[string]bool{}
	for _, p := range packages {
		ran[short(p)] = true
	}
	for _, t := range cited.InText(string(text)) {
		if !ran[t.Folder] || !matches.MatchString(t.Name) {
			continue
		}
		source, err := cited.Find(".", t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.cited, err)
		}
		if source.Built(strings.Split(o.tags, ",")) {
			out = append(out, t)
		}
	}
	return out, nil
}

// closeCited prints the summary, and then the cited tests that did not run.
func (r *report) closeCited(o options, allowed []*regexp.Regexp, packages []string) (ok bool, err error) {
	tests, err := citedTests(o, packages)
	if err != nil {
		return false, err
	}
	ok = r.close(allowed, o.ci)
	missing := r.missing(tests)
	for _, m := range missing {
		r.printf("%s names a test that shows nothing here: %s\n", o.cited, m)
	}
	if o.cited != "" {
		r.printf("%d of %d tests that %s names for these packages ran\n", len(tests)-len(missing), len(tests), o.cited)
	}
	return ok && len(missing) == 0, nil
}

// missing returns the cited tests that did not pass, each with what came of it. A failure is reported, and decides, where it happens.
func (r *report) missing(tests []cited.Test) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, want := range tests {
		i := slices.IndexFunc(r.order, func(t *test) bool { return short(t.pkg) == want.Folder && t.name == want.Name })
		switch {
		case i < 0:
			out = append(out, want.String()+": did not run")
		case r.order[i].result == "skip":
			out = append(out, want.String()+": skipped")
		}
	}
	return out
}
