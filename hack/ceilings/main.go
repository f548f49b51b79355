// Command ceilings holds what this repository wants less of to ceilings (ceilings.txt), which it can lower but never raises.
//
//	ceilings [-lower] [-list RULE] [FILE...]
//
// The files are what Vale and `go vet` found: "file:line:column:Rule.name: text". The program counts them by rule, measures the Go code
// itself (measure.go), and fails if a count is above its ceiling, has none, or is so far below that the ceiling has to be lowered,
// which -lower does. With -list it prints the findings of one rule.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const file = "hack/ceilings/ceilings.txt"

// counts has the findings of each rule; sizes have a number and no findings.
type counts struct {
	findings map[string][]string
	sizes    map[string]int
}

func main() {
	lower := flag.Bool("lower", false, "lower the ceilings to what is counted")
	list := flag.String("list", "", "print the findings of this `rule`")
	flag.Parse()
	if err := run(os.Stdout, flag.Args(), *lower, *list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, files []string, lower bool, list string) error {
	c := counts{map[string][]string{}, map[string]int{}}
	if err := c.measure(); err != nil {
		return err
	}
	for _, name := range files {
		if err := c.read(name); err != nil {
			return err
		}
	}
	if list != "" {
		fmt.Fprintln(out, strings.Join(c.findings[list], "\n"))
		return nil
	}
	for rule, findings := range c.findings {
		c.sizes[rule] = len(findings)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	kept, problems := compare(out, string(text), c, lower)
	if lower {
		if err := os.WriteFile(file, []byte(kept), 0o644); err != nil {
			return err
		}
	}
	return problems
}

var finding = regexp.MustCompile(`^([^:]+):\d+:\d+: ?([A-Z]\w+\.\w+):`)

// read takes the findings of a file in, once each, with paths from the top of the repository.
func (c *counts) read(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	top, err := os.Getwd()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimPrefix(strings.TrimPrefix(lines.Text(), top+"/"), "./")
		if m := finding.FindStringSubmatch(line); m != nil && !seen[line] {
			seen[line] = true
			c.findings[m[2]] = append(c.findings[m[2]], line)
		}
	}
	return lines.Err()
}

// compare prints each rule's count and ceiling, and returns the file with its ceilings lowered.
func compare(out io.Writer, text string, c counts, lower bool) (string, error) {
	var kept strings.Builder
	var problems []error
	known := map[string]bool{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] == "#" {
			kept.WriteString(line)
			continue
		}
		rule, comment := fields[0], strings.Join(fields[2:], " ")
		ceiling, err := strconv.Atoi(fields[1])
		if err != nil {
			return text, fmt.Errorf("%s: %s: %w", file, rule, err)
		}
		known[rule] = true
		n := c.sizes[rule]
		fmt.Fprintf(out, "%-18s %6d, ceiling %6d\n", rule, n, ceiling)
		switch {
		case n > ceiling:
			problems = append(problems, fmt.Errorf("%s: %d is above the ceiling of %d%s", rule, n, ceiling, changed(c.findings[rule], rule)))
		case !lower && (ceiling-n > max(ceiling/20, 2) || n == 0 && ceiling > 0):
			problems = append(problems, fmt.Errorf("%s: the ceiling of %d is too high for %d: run `make ceilings` and commit %s", rule, ceiling, n, file))
		}
		fmt.Fprintln(&kept, strings.TrimRight(fmt.Sprintf("%-18s %6d  %s", rule, min(n, ceiling), comment), " "))
	}
	for _, rule := range slices.Sorted(maps.Keys(c.sizes)) {
		if !known[rule] {
			problems = append(problems, fmt.Errorf("%s: %d, and no ceiling in %s", rule, c.sizes[rule], file))
		}
	}
	return kept.String(), errors.Join(problems...)
}

// changed lists the findings in files that differ from main: one of them is new.
func changed(findings []string, rule string) string {
	diff, err := exec.Command("git", "diff", "--name-only", "origin/main").Output()
	if err != nil {
		return fmt.Sprintf(" (make ceilings LIST=%s prints all)", rule)
	}
	var text strings.Builder
	fmt.Fprintf(&text, " (make ceilings LIST=%s prints all); in the files that you changed:", rule)
	for _, line := range findings {
		if path, _, _ := strings.Cut(line, ":"); slices.Contains(strings.Fields(string(diff)), filepath.Clean(path)) {
			text.WriteString("\n\t" + line)
		}
	}
	return text.String()
}
