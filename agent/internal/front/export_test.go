package front

import (
	"github.com/miekg/dns"

	"github.com/neardns/neardns/agent/internal/places"
)

// Do answers a datagram that was just read at the server's first address.
func (s *Server) Do(w dns.ResponseWriter, r *dns.Msg) {
	s.crowd.take(places.Source(w.RemoteAddr()))
	s.points[0].ServeDNS(w, r)
}
