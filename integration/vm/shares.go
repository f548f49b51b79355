package main

import (
	"fmt"
	"io"
	"sync"
)

// shares has the guests divide the plan's jobs: each gets its next one when it has ended the last, so that none is idle while
// another has a long way to go. Its methods may be called at the same time.
type shares struct {
	mu      sync.Mutex
	rest    []job
	to      io.Writer // takes the events, a whole job's at a time: their reader distinguishes packages, not guests
	records io.Writer // takes the lines that integration/compat had printed; nil: not wanted
	ended   int       // jobs whose events came
}

// next returns a job that no guest has had, or nil.
func (s *shares) next() *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.rest) == 0 {
		return nil
	}
	j := s.rest[0]
	s.rest = s.rest[1:]
	return &j
}

// took passes events on, those of a whole job or such as belong to none.
func (s *shares) took(events []byte, job bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if job {
		s.ended++
	}
	if len(events) == 0 {
		return nil
	}
	if _, err := s.to.Write(events); err != nil {
		return fmt.Errorf("pass events on: %w", err)
	}
	return nil
}

func (s *shares) record(line string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		return nil
	}
	if _, err := io.WriteString(s.records, line); err != nil {
		return fmt.Errorf("write a record: %w", err)
	}
	return nil
}
