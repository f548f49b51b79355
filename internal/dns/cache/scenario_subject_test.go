package cache_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/cache" // registers what we are compared with
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	dto "github.com/prometheus/client_model/go"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/testutil"
)

// subject is a cache plugin on the bench: ours or CoreDNS's.
type subject struct {
	name string
	// open starts a process, from the snapshot of an earlier one or from nothing.
	open func(t *testing.T, snapshot []byte, boot answers.Boot) process
}

// process is a cache from its start to its end. A load is one of the configurations that it serves in turn.
type process interface {
	setup() caddy.SetupFunc
	// snapshot ends the process.
	snapshot(boot answers.Boot) ([]byte, error)
}

// stock is CoreDNS's cache: nothing outlives a load.
func stock() subject {
	return subject{name: "coredns", open: func(*testing.T, []byte, answers.Boot) process { return stockProcess{} }}
}

type stockProcess struct{}

func (stockProcess) snapshot(answers.Boot) ([]byte, error) { return nil, nil }
func (stockProcess) setup() caddy.SetupFunc {
	setup, err := caddy.DirectiveAction("dns", "cache")
	if err != nil {
		return func(*caddy.Controller) error { return err }
	}
	return setup
}

// serve puts the plugin that block configures into a CoreDNS server, before next. The server is CoreDNS's own, because what it does around
// the plugins (EDNS versions, classes, the client's buffer size) is part of the answer.
func serve(setup caddy.SetupFunc, block string, next plugin.Handler) (*dnsserver.Server, error) {
	c := caddy.NewTestController("dns", block)
	c.ServerBlockKeys = []string{"."}
	if err := setup(c); err != nil {
		return nil, err
	}
	cfg := dnsserver.GetConfig(c)
	cfg.Zone, cfg.Transport = ".", "dns"
	cfg.AddPlugin(func(plugin.Handler) plugin.Handler { return next })
	return dnsserver.NewServer("dns://.:53", []*dnsserver.Config{cfg})
}

// client is the sender: a dns.ResponseWriter that keeps what reaches the wire.
type client struct {
	test.ResponseWriter
	remote net.Addr

	mu      sync.Mutex // guards the fields below
	replies [][]byte
	after   time.Duration

	since func() time.Duration // how long ago the query was sent; nil: not measured
}

func newClient(tcp bool) *client {
	c := &client{remote: &net.UDPAddr{IP: net.IPv4(10, 244, 1, 7), Port: 40000}}
	if tcp {
		c.remote = &net.TCPAddr{IP: net.IPv4(10, 244, 1, 7), Port: 40000}
	}
	return c
}

func (c *client) RemoteAddr() net.Addr { return c.remote }

// WriteMsg packs at once, as a socket's writer does: the message may change when the call is over. Of a message that cannot be packed, the
// reply is empty, which exchange reports.
func (c *client) WriteMsg(m *dns.Msg) error {
	wire, err := m.Pack()
	_, _ = c.Write(wire)
	return err
}

func (c *client) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies = append(c.replies, append([]byte(nil), b...))
	if c.since != nil {
		c.after = c.since()
	}
	return len(b), nil
}

// reply is what a client got.
type reply struct {
	msg   *dns.Msg // nil: silence
	size  int
	after time.Duration
}

// put sends one query, waits for the reply, and measures how long that took on the synctest bubble's clock.
func put(s *dnsserver.Server, m *dns.Msg, tcp bool) (reply, error) {
	c, begun := newClient(tcp), time.Now()
	c.since = func() time.Duration { return time.Since(begun) }
	return exchange(s, c, m)
}

// exchange sends one query for a client and waits for the reply.
func exchange(s *dnsserver.Server, c *client, m *dns.Msg) (reply, error) {
	wire, err := m.Pack()
	if err != nil {
		return reply{}, err
	}
	r := new(dns.Msg)
	if err := r.Unpack(wire); err != nil {
		return reply{}, err
	}
	s.ServeDNS(context.WithValue(context.Background(), dnsserver.Key{}, s), c, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.replies) == 0:
		return reply{after: c.after}, nil
	case len(c.replies) > 1:
		return reply{}, fmt.Errorf("%d replies to one question", len(c.replies))
	}
	got := new(dns.Msg)
	if err := got.Unpack(c.replies[0]); err != nil {
		return reply{}, fmt.Errorf("reply that cannot be read: %w", err)
	}
	return reply{msg: got, size: len(c.replies[0]), after: c.after}, nil
}

// panics returns how many panics CoreDNS's server has caught. It answers them with SERVFAIL, which could be taken for an upstream's.
func panics(t *testing.T) float64 {
	t.Helper()
	var m dto.Metric
	testutil.Must(t, vars.Panic.Write(&m))
	return m.GetCounter().GetValue()
}
