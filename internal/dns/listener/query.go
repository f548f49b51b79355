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
	c, cfg, err := s.enter()
	if err != nil {
		return err
	}
	at, w := cfg.internalClient()
	answers := make(chan *dns.Msg, 1)
	go func() { // ends when the plugin chain returns, which may be after ctx
		defer c.leave()
		c.answer(s.observer, at, netip.Addr{}, w, new(dns.Msg).SetQuestion(strings.ToLower(rand.Text())+"."+dns.Fqdn(zone), dns.TypeA))
		answers <- w.Msg
	}()
	select {
	case m := <-answers:
		switch {
		case m == nil:
			return fmt.Errorf("%s: no answer", zone)
		case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
			return fmt.Errorf("%s: %s", zone, dns.RcodeToString[m.Rcode])
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: silent", zone)
	}
}

// Fetch resolves a mirrored query, whose client gets its answer elsewhere. If the cache has the answer, it counts as a hit by a client
// with this identity. Otherwise the plugin chain gets the answer and caches it. Fetch returns the response code. message is a complete
// query in wire form; Fetch does not keep it.
func (s *Server) Fetch(message []byte, identity any) (rcode int, err error) {
	c, cfg, err := s.enter()
	if err != nil {
		return 0, err
	}
	defer c.leave()
	at, w := cfg.internalClient()
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

// enter returns the plugin chain with its configuration, and counts a query in progress there. The caller must call leave. It counts with
// mu held, so that no Restart retires the chain before.
func (s *Server) enter() (*serving, Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chain == nil || !s.chain.enter() {
		return nil, Config{}, ErrStopped
	}
	return s.chain, s.config, nil
}

// internalClient returns the client of the agent's own queries. Its address is the server's own, so it is not a pod's.
func (c *Config) internalClient() (at netip.AddrPort, w *responsewriter.Capture) {
	at = netip.AddrPortFrom(c.Addresses[0], c.Port)
	own := net.UDPAddrFromAddrPort(at)
	return at, &responsewriter.Capture{Base: responsewriter.Base{Local: own, Remote: own}}
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
