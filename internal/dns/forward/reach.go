package forward

import (
	"cmp"
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

	"github.com/neardns/neardns/pkg/tick"
)

// ErrNotAsked means that no server block forwards the name with this plugin: the operator's Corefile resolves it in another way.
var ErrNotAsked = errors.New("no server block forwards this name with the plugin ask")

// Reach queries name's A record at the servers of the block that forwards the name, the last resort included. It returns nil as soon as a
// server has answered well. When all have failed or ctx ends, it returns the reasons. If pressing is true, it queries all servers at the
// same time, over both protocols (TLS servers only over TLS) and several times; otherwise one after the other.
//
// It does not change the servers' health, and the limits of clients' queries do not apply to it.
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

// Heard returns how long ago a server for name last gave a good answer to a client's query; ok is false if none ever did.
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

// Trouble returns a channel that receives a value when a query is not answered as it should be: not soon, after an ICMP error, or with
// SERVFAIL. It is for one reader; several values may be merged into one.
func (ss *Servers) Trouble() <-chan struct{} { return ss.trouble }

// NoteTrouble sends a value to Trouble: a query was not answered as it should be, by these servers or others. It never blocks.
func (ss *Servers) NoteTrouble() {
	ss.trouble.Send()
}

// blockOf returns the server block that forwards name: the one with the longest zone that contains it. Of several it returns the newest,
// because after a reload the old blocks stay for a while, so that their queries are answered.
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

// press queries all servers several times over UDP and over TCP, each time over a new connection; a server with TLS only over TLS. One lost
// packet or one dead endpoint of a Service must not decide.
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
		for _, after := range []time.Duration{0, 700 * time.Millisecond} {
			attempts = append(attempts, attempt{s, true, after})
		}
		for _, after := range []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond, time.Second, 1400 * time.Millisecond} {
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
			if !tick.Pause(ctx, t.after) {
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
	return cmp.Or(once(errs), ctx.Err()) // ctx may have ended before any attempt began
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

// reach sends one query to one server over a new connection, and returns why that failed.
func (a *Block) reach(ctx context.Context, s *server, req *dns.Msg, stream bool) error {
	m, err := s.once(ctx, req, stream, time.Now().Add(silentEnd))
	v := good
	if err == nil {
		if v = judge(m, a.holds); v == good || v == truncated || v == lame && a.isLast(s) {
			return nil
		}
	}
	why := reasonOf(v, err).String()
	var number syscall.Errno // its text has no ports, so equal failures have equal texts
	if errors.As(err, &number) {
		why = number.Error()
	}
	over := "udp"
	if stream {
		over = "tcp"
	}
	return fmt.Errorf("%s over %s: %s", s, over, why)
}

// isLast reports whether s is a last resort, or the block has none. Pods would get its answers without neardns, so an answer counts even
// if the server does not hold the zone: a wrong clusterDomain must not cost a node its cache.
func (a *Block) isLast(s *server) bool {
	return a.first == len(a.list) || slices.Contains(a.list[a.first:], s)
}
