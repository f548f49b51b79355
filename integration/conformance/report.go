// Package conformance owns what runs of Kubernetes' own DNS tests showed: it reads the suite's report, compares the columns of a
// result, and draws the table of docs/project/conformance.md. It is pure; integration/cluster/conformance runs the suite (`make
// conformance`).
package conformance

import (
	"bufio"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Outcome is what came of a test.
type Outcome string

// The outcomes. What a test ends in besides these (panicked, interrupted, timed out) is Failed.
const (
	Passed  Outcome = "passed"
	Skipped Outcome = "skipped" // by the test itself
	Failed  Outcome = "failed"
)

// Test is one of the suite's.
type Test struct {
	Name    string  `json:"name"` // with its tags, such as "[sig-network] DNS should provide DNS for services [Conformance]"
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"` // of one that did not pass: the suite's message in one line
}

// unchosen is the report's message for a test that the run's focus left out; where the test skipped itself, more follows.
const unchosen = "skipped"

// mostReason is how much of a message is kept, in bytes: some hold whole objects.
const mostReason = 240

// ReadReport reads the report that ginkgo writes in JUnit's format, and returns the tests that were chosen, by name. It is an
// error where the suite itself failed, or where no test was chosen.
func ReadReport(r io.Reader) ([]Test, error) {
	type said struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Status  string `xml:"status,attr"`
				Skipped *said  `xml:"skipped"`
				Failure *said  `xml:"failure"`
				Error   *said  `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.NewDecoder(r).Decode(&report); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var out []Test
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			why := ""
			for _, one := range []*said{c.Failure, c.Error, c.Skipped} {
				if one != nil && why == "" {
					why = oneLine(one.Message)
				}
				if one != nil && why == "" {
					why = oneLine(one.Text)
				}
			}
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			switch {
			case !isTest && (c.Failure != nil || c.Error != nil):
				return nil, fmt.Errorf("the suite itself failed in %s: %s", c.Name, why)
			case !isTest, c.Skipped != nil && why == unchosen:
			case c.Status == "passed":
				out = append(out, Test{Name: plain(name), Outcome: Passed})
			case c.Skipped != nil:
				out = append(out, Test{Name: plain(name), Outcome: Skipped, Reason: strings.TrimPrefix(why, unchosen+" - ")})
			default:
				out = append(out, Test{Name: plain(name), Outcome: Failed, Reason: why})
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the suite's report has no test that was chosen")
	}
	slices.SortFunc(out, func(a, b Test) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// plain is a test's name without the list of labels that the report adds to it; the name has them as tags.
func plain(name string) string {
	if i := strings.LastIndex(name, " ["); i > 0 && strings.HasSuffix(name, "]") {
		return name[:i]
	}
	return name
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > mostReason {
		s = strings.ToValidUTF8(s[:mostReason], "") + "…"
	}
	return s
}

// Questions reads metrics of the agent in Prometheus's text format, and returns how many queries of pods it answered: the sum of
// neardns_namespace_queries_total, which it exports with `listen.namespaces: true`.
func Questions(metrics io.Reader) (uint64, error) {
	var sum float64
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		sample, ok := strings.CutPrefix(lines.Text(), "neardns_namespace_queries_total{")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(sample[strings.LastIndexByte(sample, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read the metric %q: %w", lines.Text(), err)
		}
		sum += v
	}
	return uint64(sum), lines.Err()
}
