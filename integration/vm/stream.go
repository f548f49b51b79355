package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// event is the part of a test event that matters here (go doc test2json).
type event struct {
	Action  string
	Package string  `json:",omitempty"`
	Test    string  `json:",omitempty"`
	Output  string  `json:",omitempty"`
	Elapsed float64 `json:",omitempty"`
}

// endOfTests is the action of the guest's last line.
const endOfTests = "end-of-tests"

// stream passes test events on and knows which package is being run.
type stream struct {
	to      io.Writer
	current string // the package that began and has not ended
	ended   int    // packages that did
	done    bool   // the guest came to its end

	records io.WriteCloser // takes the lines that integration/compat had printed; nil: nobody wants them
}

// recordMark begins such a line.
const recordMark = "compat: "

// openRecords opens the file of the folder where integration/compat collects records.
func openRecords(folder string) (io.WriteCloser, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(folder, "records"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
}

func newStream(to io.Writer) *stream { return &stream{to: to} }

// copy reads events until the other side closes. What is no event is passed on: the reader names it.
func (s *stream) copy(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if err := s.take(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the guest's events: %w", err)
		}
	}
}

func (s *stream) take(line []byte) error {
	var e event
	if json.Unmarshal(line, &e) == nil {
		switch {
		case e.Action == endOfTests:
			s.done = true
			return nil
		case e.Test == "" && e.Action == "start":
			s.current = e.Package
		case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
			s.current = ""
			s.ended++
		case e.Action == "output" && strings.HasPrefix(e.Output, recordMark) && s.records != nil:
			if _, err := io.WriteString(s.records, e.Output); err != nil {
				return fmt.Errorf("write a record: %w", err)
			}
		}
	}
	_, err := s.to.Write(line)
	return err
}

// abort ends the package that is being run as failed.
func (s *stream) abort(why string) {
	if s.current == "" {
		return
	}
	for _, e := range []event{{Action: "output", Package: s.current, Output: why + "\n"}, {Action: "fail", Package: s.current}} {
		line, err := json.Marshal(e)
		if err == nil {
			_, _ = fmt.Fprintf(s.to, "\n%s\n", line)
		}
	}
	s.current = ""
}

// mostAgain is how many failed tests may be run again. More of them are no matter of a slow machine.
const mostAgain = 3

// failures passes events on and notes which tests failed.
type failures struct {
	to     io.Writer
	rest   []byte // of a line that has not ended
	failed []string
}

func (f *failures) Write(b []byte) (int, error) {
	f.rest = append(f.rest, b...)
	for {
		end := slices.Index(f.rest, '\n')
		if end < 0 {
			break
		}
		var e event
		if json.Unmarshal(f.rest[:end], &e) == nil && e.Action == "fail" && e.Test != "" {
			f.failed = append(f.failed, e.Test)
		}
		f.rest = f.rest[end+1:]
	}
	return f.to.Write(b)
}

// leaves are the failed tests that have no failed one below them.
func (f *failures) leaves() []string {
	return slices.DeleteFunc(slices.Clone(f.failed), func(name string) bool {
		return slices.ContainsFunc(f.failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// exactly is the pattern, as of go test's -run, of one test alone.
func exactly(name string) string {
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(parts, "/")
}
