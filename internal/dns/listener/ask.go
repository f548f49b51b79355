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

// Ask has the chain answer a question for a name in zone that nobody has asked for before, as if a client had sent it to one of the
// server's addresses: by whatever the configuration says of that zone, an operator's Corefile included. It returns nil once an answer
// came, a denial included, or what came instead, at the latest when ctx ends.
func (s *Server) Ask(ctx context.Context, zone string) error {
	s.mu.Lock()
	c, cfg := s.chain, s.config
	s.mu.Unlock()
	if c == nil || !c.enter() {
		return ErrStopped
	}
	at, w := cfg.internalClient()
	answers := make(chan *dns.Msg, 1)
	go func() { // ends with the answer, which every plugin bounds
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

// Fetch has a question dealt with that somebody else answers: what is kept is looked up as for a client that who is known of, and what is
// not is asked of upstreams and kept. It returns the response code once an answer is there, and otherwise an error. message must be a
// whole question in wire form; Fetch does not keep it.
func (s *Server) Fetch(message []byte, who any) (rcode int, err error) {
	s.mu.Lock()
	c, cfg := s.chain, s.config
	s.mu.Unlock()
	if c == nil || !c.enter() {
		return 0, ErrStopped
	}
	defer c.leave()
	at, w := cfg.internalClient()
	if code, ok := kept(c.chain.FastPath(at), message, who); ok {
		return code, nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(message); err != nil {
		return 0, fmt.Errorf("read the question: %w", err)
	}
	c.answer(nil, at, netip.Addr{}, w, m)
	if w.Msg == nil {
		return 0, errors.New("no answer")
	}
	return w.Msg.Rcode, nil
}

// internalClient is the client of the agent's own queries: it is at the server's own address, so it is no pod's.
func (c *Config) internalClient() (at netip.AddrPort, w *responsewriter.Capture) {
	at = netip.AddrPortFrom(c.Addresses[0], c.Port)
	own := net.UDPAddrFromAddrPort(at)
	return at, &responsewriter.Capture{Base: responsewriter.Base{Local: own, Remote: own}}
}

// kept looks up what stands before the chain.
func kept(first fastpath.Handler, message []byte, who any) (code int, ok bool) {
	if first == nil {
		return 0, false
	}
	answer, _, ok := first.Answer(make([]byte, 0, dns.MinMsgSize), &fastpath.Query{Wire: message, Who: who, Received: time.Now()})
	if !ok || len(answer) < msg.HeaderSize {
		return 0, false
	}
	return msg.Rcode(answer), true
}
