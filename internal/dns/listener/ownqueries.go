package listener

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fastpath"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/dns/responsewriter"
)

// Query sends a query for a random name in zone through the plugin chain, as if a client had sent it to the first of the server's
// addresses. So it tests that zone's configuration, also in an operator's Corefile. It returns nil if the answer is NOERROR or NXDOMAIN. It
// returns an error if the answer has another response code, if there is no answer, if ctx ends first, or if the server is not started.
func (s *Server) Query(ctx context.Context, zone string) error {
	done := make(chan error, 1)
	go func() { done <- s.query(zone) }() // may end after ctx: it waits for mu and for the plugin chain
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: silent", zone)
	}
}

func (s *Server) query(zone string) error {
	c, at, w, err := s.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	c.answer(s.observer, at, netip.Addr{}, w, new(dns.Msg).SetQuestion(strings.ToLower(rand.Text())+"."+dns.Fqdn(zone), dns.TypeA))
	switch m := w.Msg; {
	case m == nil:
		return fmt.Errorf("%s: no answer", zone)
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return fmt.Errorf("%s: %s", zone, dns.RcodeToString[m.Rcode])
	}
	return nil
}

// Fetch resolves a mirrored query, whose client gets its answer elsewhere. If the cache has the answer, it counts as a hit by a client
// with this identity. Otherwise the plugin chain gets the answer and caches it. Fetch returns the response code. message is a complete
// query in wire form; Fetch does not keep it.
func (s *Server) Fetch(message []byte, identity any) (rcode int, err error) {
	c, at, w, err := s.enter()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	if code, ok := s.fetchFast(c.chain.FastPath(at), message, identity); ok {
		return code, nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(message); err != nil {
		return 0, fmt.Errorf("read the query: %w", err)
	}
	c.answer(nil, at, netip.Addr{}, w, m)
	if w.Msg == nil {
		return 0, errors.New("no answer")
	}
	return w.Msg.Rcode, nil
}

// enter counts a query of the agent's own in the plugin chain. It returns the address to which the query seems to come, and w, which
// captures the answer. w's client address is the server's own, so it is not a pod's. The caller must call c.leave. mu keeps Restart from
// retiring the chain before the query counts.
func (s *Server) enter() (c *serving, at netip.AddrPort, w *responsewriter.Capture, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain == nil || !s.chain.enter() {
		return nil, at, nil, ErrStopped
	}
	at = netip.AddrPortFrom(s.config.Addresses[0], s.config.Port)
	own := net.UDPAddrFromAddrPort(at)
	return s.chain, at, &responsewriter.Capture{Base: responsewriter.Base{Local: own, Remote: own}}, nil
}

func (s *Server) fetchFast(first fastpath.Handler, message []byte, identity any) (code int, ok bool) {
	defer leaveToChain(s.log, &ok)
	if first == nil {
		return 0, false
	}
	answer, _, ok := first.Answer(make([]byte, 0, dns.MinMsgSize), &fastpath.Query{Wire: message, Identity: identity, Received: time.Now()})
	if !ok || len(answer) < msg.HeaderSize {
		return 0, false
	}
	return msg.Rcode(answer), true
}
