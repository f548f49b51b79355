package authoritative

import (
	"net/netip"

	"github.com/miekg/dns"
)

// AnswersHelp is the text of the metric of answers.
const AnswersHelp = answersHelp

// Choose makes the query path's choice for a host of a zone, without the answer's message.
func (s *Server) Choose(z *Zone, name string, family int, c Client, draw uint64) int {
	place, _ := s.locator.Load().Locate(c.address)
	i, _ := z.hosts[name].choose(family, place, draw)
	return i
}

// Over counts an answer to a client, and reports whether it is over the rate limit.
func (s *Server) Over(c Client) bool { return s.options.Load().limit.over(c.address) != full }

// Client is the client for whom an answer is chosen.
type Client = client

// ClientAt is a client by its address alone.
func ClientAt(a netip.Addr) Client { return client{address: a} }

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
