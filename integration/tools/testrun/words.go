package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

var logLine = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)`)

// reason finds in a skipped test's output why it was skipped: the line made for that, else its last logged line.
func reason(output []string) string {
	found := "no reason given"
	for _, line := range output {
		line = strings.TrimRight(line, "\n")
		if _, rest, ok := strings.Cut(line, "SKIP-REASON: "); ok {
			if _, why, ok := strings.Cut(rest, ": "); ok {
				return why
			}
		}
		if m := logLine.FindStringSubmatch(line); m != nil {
			found = m[1]
		}
	}
	return found
}

// readAllowed reads one regular expression a line, matched against "package test: reason". '#' begins a comment.
func readAllowed(file string) ([]*regexp.Regexp, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read allowed skips: %w", err)
	}
	var out []*regexp.Regexp
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		out = append(out, re)
	}
	return out, nil
}

// tail returns the last lines, and of those before them what the test itself logged.
func tail(lines []string) string {
	n := len(lines) - maxOutput
	if n <= 0 {
		return strings.Join(lines, "")
	}
	own := slices.DeleteFunc(slices.Clone(lines[:n]), func(line string) bool { return !strings.Contains(line, "_test.go:") })
	return strings.Join(own, "") + fmt.Sprintf("      ... %d lines before\n", n-len(own)) + strings.Join(lines[n:], "")
}

// short takes the module's name off a package's path, which would stand before every line.
func short(pkg string) string {
	if parts := strings.SplitN(pkg, "/", 4); len(parts) == 4 && strings.Contains(parts[0], ".") {
		return parts[3]
	}
	return pkg
}
