package main

import (
	"fmt"
	"os"
	"strings"
)

// maxQuarantined is how many tests may be in quarantine at a time: above that, the check itself is broken.
const maxQuarantined = 5

// readQuarantine reads one test a line, "package Test: reason", such as "pkg/tick TestLoop: misses a tick under load, #123".
// '#' begins a comment. The list names whole tests, never subtests.
func readQuarantine(file string) (map[string]string, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read quarantine: %w", err)
	}
	out := map[string]string{}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, why, ok := strings.Cut(line, ": ")
		if _, test, two := strings.Cut(name, " "); !ok || !two || strings.ContainsAny(test, " /") {
			return nil, fmt.Errorf("%s:%d: want \"package Test: reason\", not %q", file, i+1, line)
		}
		if out[name] = why; len(out) > maxQuarantined {
			return nil, fmt.Errorf("%s:%d: more than %d tests are in quarantine; fix one first", file, i+1, maxQuarantined)
		}
	}
	return out, nil
}

// top is the name of the test that a subtest belongs to.
func top(name string) string {
	name, _, _ = strings.Cut(name, "/")
	return name
}
