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
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port)
	w := &listener{at: at, answers: make(chan *dns.Msg, 1)}
	go func() { // ends with the answer, which every plugin bounds
		defer c.leave()
		c.answer(s.observer, at, netip.Addr{}, w, new(dns.Msg).SetQuestion(strings.ToLower(rand.Text())+"."+dns.Fqdn(zone), dns.TypeA))
		w.say(nil)
	}()
	select {
	case m := <-w.answers:
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
	at := netip.AddrPortFrom(cfg.Addresses[0], cfg.Port)
	if code, ok := kept(c.chain.First(at), message, who); ok {
		return code, nil
	}
	m := new(dns.Msg)
	if err := m.Unpack(message); err != nil {
		return 0, fmt.Errorf("read the question: %w", err)
	}
	w := &listener{at: at, answers: make(chan *dns.Msg, 1)}
	c.answer(nil, at, netip.Addr{}, w, m)
	w.say(nil)
	answer := <-w.answers
	if answer == nil {
		return 0, errors.New("no answer")
	}
	return answer.Rcode, nil
}

// kept looks up what stands before the chain.
func kept(first Answerer, message []byte, who any) (code int, ok bool) {
	if first == nil {
		return 0, false
	}
	answer, _, ok := first.Answer(make([]byte, 0, dns.MinMsgSize), &fastpath.Question{Wire: message, Who: who, Begun: time.Now()})
	if !ok || len(answer) < headerSize {
		return 0, false
	}
	return rcode(answer), true
}

// listener is a client inside the process.
type listener struct {
	at      netip.AddrPort
	answers chan *dns.Msg
}

// say takes the first answer.
func (l *listener) say(m *dns.Msg) {
	select {
	case l.answers <- m:
	default:
	}
}

// LocalAddr implements dns.ResponseWriter, as do the rest.
func (l *listener) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(l.at) }

// RemoteAddr is the server's own: no pod's.
func (l *listener) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(l.at) }

// WriteMsg takes an answer.
func (l *listener) WriteMsg(m *dns.Msg) error {
	l.say(m.Copy())
	return nil
}

func (l *listener) Write(wire []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		return 0, err
	}
	l.say(m)
	return len(wire), nil
}

// Close implements dns.ResponseWriter; nothing is open.
func (*listener) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter.
func (*listener) TsigStatus() error { return errors.New("no signature") }

// TsigTimersOnly implements dns.ResponseWriter.
func (*listener) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (*listener) Hijack() {}
