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

// ErrNotAsked means that no server block forwards a name with this plugin. An operator's Corefile answers it in another way.
var ErrNotAsked = errors.New("no server block forwards this name with the plugin ask")

// When a pressing query is sent to each server and over each protocol, always over a new connection: a lost packet, a Service's endpoint
// that is gone or an old connection must not decide.
func reachUDP() []time.Duration {
	return []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond, time.Second, 1400 * time.Millisecond}
}
func reachTCP() []time.Duration { return []time.Duration{0, 700 * time.Millisecond} }

// Reach sends a query for name's address as a miss would: from this netns, with its routes and filters, the last resort included. It
// returns nil once a server has answered well; when ctx ends or all have failed, it returns why. If pressing, it queries all servers at
// once over both protocols, several times; otherwise one after the other.
//
// It does not change the servers' health, and clients' queries do not limit it.
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
		err := a.reach(ctx, s, req, s.tls != nil || a.stream && !s.prefersDatagrams(time.Now()))
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Heard returns how long ago one of the servers for name last answered a client's query well; false: never.
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

// Trouble receives a value when a query was not answered as soon as it should be. It is for one reader, which may be slow.
func (ss *Servers) Trouble() <-chan struct{} { return ss.trouble }

// NoteTrouble records that a query was not answered as it should be, by these servers or others. It never waits.
func (ss *Servers) NoteTrouble() {
	ss.trouble.Send()
}

// blockOf finds the server block for name: the one with the longest zone, and of these the newest, because after a reload the old blocks
// stay until their last answer.
func (ss *Servers) blockOf(name string) *Block {
	name = strings.ToLower(dns.Fqdn(name))
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var found *Block
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

// press queries all servers over all protocols.
func (a *Block) press(ctx context.Context, req *dns.Msg) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the attempts that still wait
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

// reach sends one query to one server over a new connection.
func (a *Block) reach(ctx context.Context, s *server, req *dns.Msg, stream bool) error {
	buf, wire, err := s.bufs.pack(req)
	if err != nil {
		return err // cannot happen: the name was packed before
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

// isLast reports whether no other server comes after s: it is a last resort, or there is none. Its answers are what pods would get from
// kube-dns without neardns, even for a zone that it does not hold: a wrong clusterDomain must not cost a node its cache.
func (a *Block) isLast(s *server) bool {
	return a.first == len(a.list) || slices.Contains(a.list[a.first:], s)
}
