package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// maxOutput is how much of one failed test is printed, from its end: a failed load test must not bury the next failure.
const maxOutput = 200

type test struct {
	pkg, name string
	result    string // pass, fail, skip
	output    []string
	parent    bool
	unended   bool // the package ended before it: a panic or a time limit, which also kept other tests from running
	itself    bool // it has tests below it, and failed although none of them did
	seconds   float64
}

// report takes in events, prints a line per package as it goes, and the sum at the end. Only add and stray may be
// called from several goroutines.
type report struct {
	mu       sync.Mutex // held by add and stray
	out      io.Writer
	tests    map[string]*test // by package and name
	order    []*test
	packages map[string][]string // output of a package that belongs to no test
	builds   map[string][]string
	failures int // what failed outside any test: builds, panics, time limits

	quarantined map[string]string // reasons, by "package Test"
}

func newReport(out io.Writer) *report {
	return &report{out: out, tests: map[string]*test{}, packages: map[string][]string{}, builds: map[string][]string{}}
}

func (r *report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

func (r *report) stray(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printf("%s", line)
}

func (r *report) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Action == "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
	case e.Action == "build-fail":
		r.printf("FAIL  %s does not build\n%s", e.ImportPath, strings.Join(r.builds[e.ImportPath], ""))
	case e.Test == "" && e.Action == "output":
		r.packages[e.Package] = append(r.packages[e.Package], e.Output)
	case e.Test == "":
		r.endPackage(e)
	case e.Action == "output":
		t := r.test(e)
		t.output = append(t.output, e.Output)
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		r.endTest(e)
	default:
		r.test(e)
	}
}

func (r *report) test(e event) *test {
	key := e.Package + " " + e.Test
	t := r.tests[key]
	if t == nil {
		t = &test{pkg: e.Package, name: e.Test}
		r.tests[key] = t
		r.order = append(r.order, t)
		// A subtest's own name may have slashes: what is before the last one need not be a test. Parents run first.
		for up := e.Test; strings.Contains(up, "/"); {
			up = up[:strings.LastIndexByte(up, '/')]
			if parent := r.tests[e.Package+" "+up]; parent != nil {
				parent.parent = true
				break
			}
		}
	}
	return t
}

func (r *report) endTest(e event) {
	t := r.test(e)
	t.seconds = max(t.seconds, e.Elapsed)
	if t.result == "fail" {
		return // the emulated machines run a package's tests in several jobs: one that failed stays failed
	}
	t.result = e.Action
	if t.result == "fail" {
		t.itself = t.parent && !r.failedBelow(t)
		r.printf("FAIL  %s %s (%.1fs)\n%s", short(t.pkg), t.name, e.Elapsed, tail(t.output))
	}
	// The timing tier's figures are what its tests log.
	if figures := logged(t.output); t.result == "pass" && strings.HasPrefix(t.name, "TestTiming") && figures != "" {
		r.printf("      %s %s (%.1fs)\n%s", short(t.pkg), t.name, e.Elapsed, figures)
	}
	if t.result != "skip" { // a skip's output is its reason
		t.output = nil
	}
}

func (r *report) endPackage(e event) {
	ran := 0
	for _, t := range r.order {
		if t.pkg != e.Package {
			continue
		}
		ran++
		if t.result == "" && e.Action == "fail" {
			// Still running when the package ended: a panic, a time limit, or a call of os.Exit.
			t.result, t.unended = "fail", true
			r.printf("FAIL  %s %s did not end\n%s", short(t.pkg), t.name, tail(t.output))
		}
	}
	switch {
	case e.Action == "fail":
		if !slices.ContainsFunc(r.order, func(t *test) bool { return t.pkg == e.Package && t.result == "fail" }) {
			r.failures++
			if e.FailedBuild == "" {
				r.printf("%s", tail(r.packages[e.Package]))
			}
		}
		r.printf("FAIL  %s (%.1fs)\n", short(e.Package), e.Elapsed)
	case e.Action == "pass" && ran > 0:
		r.printf("ok    %s (%.1fs)\n", short(e.Package), e.Elapsed)
	}
	delete(r.packages, e.Package)
}

// buildFailed takes in a package whose tests do not compile.
func (r *report) buildFailed(pkg, output string) {
	r.add(event{Action: "build-output", ImportPath: pkg, Output: output})
	r.add(event{Action: "build-fail", ImportPath: pkg})
	r.add(event{Action: "fail", Package: pkg, FailedBuild: pkg})
}

func (r *report) failedAny() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failures > 0 || slices.ContainsFunc(r.order, func(t *test) bool { return t.result == "fail" })
}

// logged returns what a test logged: its output without the lines of the testing package.
func logged(output []string) string {
	var b strings.Builder
	for _, line := range output {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
