package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// ErrNotAsked says that no server block asks by this plugin for a name: an operator's Corefile answers it in another way.
var ErrNotAsked = errors.New("no server is asked for this name by ask")

// When a pressing question is sent, to each server and over each protocol, always over a new connection: a lost packet, a Service's
// endpoint that is gone or a connection from before must not decide.
func reachUDP() []time.Duration {
	return []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond, time.Second, 1400 * time.Millisecond}
}
func reachTCP() []time.Duration { return []time.Duration{0, 700 * time.Millisecond} }

// Reach asks for name's address as a miss would be asked: from this netns, by its routes and filters, the last resort included. It
// returns nil once a server has answered well, and otherwise, when ctx ends or all have failed, why none did. Pressing asks all
// servers at once over both protocols, again and again; otherwise they are asked one after the other, as they usually are.
//
// What comes of it changes nothing of what is known of the servers, and is bounded by nobody else's questions.
func (ss *Servers) Reach(ctx context.Context, name string, pressing bool) error {
	a := ss.blockOf(name)
	if a == nil {
		return ErrNotAsked
	}
	req := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	if pressing {
		return a.press(ctx, req)
	}
	var errs []error
	for _, s := range a.list {
		err := a.reach(ctx, s, req, s.tls != nil || a.stream && !s.streamless(time.Now()))
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Heard is how long ago one of the servers that are asked for name last answered a client's question well; false: never.
func (ss *Servers) Heard(name string) (ago time.Duration, ok bool) {
	a := ss.blockOf(name)
	if a == nil {
		return 0, false
	}
	for _, s := range a.list {
		if at := s.health.well.Load(); at != 0 {
			if d := time.Duration(s.at(time.Now()) - at); !ok || d < ago {
				ago, ok = d, true
			}
		}
	}
	return ago, ok
}

// Trouble gets a value when a question was not answered as soon as it should. It is for one reader, who may be slow.
func (ss *Servers) Trouble() <-chan struct{} { return ss.trouble }

// NoteTrouble notes that a question was not answered as it should, by these servers or others. It never waits.
func (ss *Servers) NoteTrouble() {
	ss.trouble.Send()
}

// blockOf finds the server block that is asked for name: the one of the longest zone, and of these the newest, since a reload's old
// blocks stay until their last answer.
func (ss *Servers) blockOf(name string) *Ask {
	name = strings.ToLower(dns.Fqdn(name))
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var found *Ask
	longest := 0
	for _, a := range ss.blocks {
		for _, z := range a.zones {
			if dns.IsSubDomain(z, name) && len(z) >= longest {
				found, longest = a, len(z)
			}
		}
	}
	return found
}

// press asks everybody in every way.
func (a *Ask) press(ctx context.Context, req *dns.Msg) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends those that still wait
	type attempt struct {
		server *server
		stream bool
		after  time.Duration
	}
	var attempts []attempt
	for _, s := range a.list {
		for _, after := range reachTCP() {
			attempts = append(attempts, attempt{s, true, after})
		}
		for _, after := range reachUDP() {
			if s.tls == nil {
				attempts = append(attempts, attempt{s, false, after})
			}
		}
	}
	var answered atomic.Bool
	errs := make([]error, len(attempts))
	var wg sync.WaitGroup
	for i, t := range attempts {
		wg.Go(func() {
			timer := time.NewTimer(t.after)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
			if errs[i] = a.reach(ctx, t.server, req, t.stream); errs[i] == nil {
				answered.Store(true)
				cancel()
			}
		})
	}
	wg.Wait()
	if answered.Load() {
		return nil
	}
	return once(errs)
}

// once joins errors, each text once.
func once(errs []error) error {
	var out []error
	for _, err := range errs {
		if err != nil && !slices.ContainsFunc(out, func(e error) bool { return e.Error() == err.Error() }) {
			out = append(out, err)
		}
	}
	return errors.Join(out...)
}

// reach asks one server once, over a new connection.
func (a *Ask) reach(ctx context.Context, s *server, req *dns.Msg, stream bool) error {
	buf, wire, err := s.bufs.pack(req)
	if err != nil {
		return err // never: the name was packed before
	}
	defer s.bufs.put(buf)
	m, err := s.exchange(ctx, req, wire, way{stream: stream, fresh: true}, time.Now().Add(silentEnd))
	v := good
	if err == nil {
		if v = judge(m, a.holds); v == good || v == truncated || v == lame && a.isLast(s) {
			return nil
		}
	}
	why := reasonOf(v, err).String()
	var number syscall.Errno // without the ports, so that the same fault has the same text
	if errors.As(err, &number) {
		why = number.Error()
	}
	over := "udp"
	if stream {
		over = "tcp"
	}
	return fmt.Errorf("%s over %s: %s", s, over, why)
}

// isLast reports whether nobody is behind a server: it is the last resort, or there is none. What it says is what pods hear of
// kube-dns without us, also where the zone is not the one that it holds: a wrong clusterDomain must not cost a node its cache.
func (a *Ask) isLast(s *server) bool {
	return a.first == len(a.list) || slices.Contains(a.list[a.first:], s)
}
