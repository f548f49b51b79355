package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// Actions of the guest's own: it requests its next job, whose answer is a line with the job or null; and it has none left.
const (
	nextJob    = "next-job"
	endOfTests = "end-of-tests"
)

// stream is one guest's conversation: it hands jobs to it and passes on what becomes of each, when the job has ended.
type stream struct {
	shares *shares
	reply  io.Writer    // to the guest
	given  *job         // the job that it has
	block  bytes.Buffer // the job's events
	done   bool         // the guest came to its end
}

// recordMark begins a line that integration/compat had printed.
const recordMark = "compat: "

// openRecords opens the file of the folder where integration/compat collects records.
func openRecords(folder string) (io.WriteCloser, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(folder, "records"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
}

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
		case e.Action == nextJob:
			return s.next()
		case e.Action == endOfTests:
			s.done = true
			return s.end()
		case e.Action == "output" && strings.HasPrefix(e.Output, recordMark):
			if err := s.shares.record(e.Output); err != nil {
				return err
			}
		}
	}
	_, err := s.block.Write(line)
	return err
}

// next ends the job that the guest had and answers it with another one.
func (s *stream) next() error {
	if err := s.end(); err != nil {
		return err
	}
	s.given = s.shares.next()
	line, err := json.Marshal(s.given)
	if err == nil {
		_, err = s.reply.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("give the guest a job: %w", err)
	}
	return nil
}

// end passes on what came since the last job's end.
func (s *stream) end() error {
	ended := s.given != nil
	s.given = nil
	defer s.block.Reset()
	return s.shares.took(s.block.Bytes(), ended)
}

// abort ends the guest's job as failed.
func (s *stream) abort(why string) error {
	if s.given != nil {
		pkg := module + "/" + s.given.Package
		for _, e := range []event{{Action: "output", Package: pkg, Output: why + "\n"}, {Action: "fail", Package: pkg}} {
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			fmt.Fprintf(&s.block, "\n%s\n", line)
		}
	}
	return s.end()
}
