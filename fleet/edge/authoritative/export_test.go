package authoritative

import (
	"github.com/miekg/dns"
)

// AnswersHelp is the text of the metric of answers.
const AnswersHelp = answersHelp

// Compile makes a zone of its records.
func Compile(origin string, records []dns.RR, watch Watch) (*Zone, error) {
	return compile(origin, records, watch, new(heartbeats))
}

// Set serves a zone.
func (s *Server) Set(z *Zone) {
	if err := s.set(z); err != nil {
		panic(err)
	}
}

// SetDraw replaces the source of random numbers.
func (s *Server) SetDraw(draw func() uint64) { s.draw = draw }
