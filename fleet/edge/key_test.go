package main

import (
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/edgeconfig"
)

// TestNoKeyIsNotUnsigned: with a key configured, no query leaves without its signature, also before the key can be read for the first time.
func TestNoKeyIsNotUnsigned(t *testing.T) {
	queries := make(chan *dns.Msg, 1)
	started := make(chan struct{})
	primary := &dns.Server{Addr: "127.0.0.1:0", Net: "tcp", NotifyStartedFunc: func() { close(started) },
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			queries <- m
			_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeRefused))
		})}
	served := make(chan error, 1)
	go func() { served <- primary.ListenAndServe() }()
	<-started
	r := &edge{log: slog.New(slog.DiscardHandler), env: env{readFile: func(path string) ([]byte, error) {
		return nil, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
	}}}
	z := edgeconfig.Zone{Name: "glb.example", Key: "/etc/keys"}
	z.Primary.Addr = netip.MustParseAddrPort(primary.Listener.Addr().String())
	_, err := r.client(z, edgeconfig.Limits{}).Serial(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no valid TSIG key in /etc/keys") {
		t.Errorf("the zone's serial was read without a key: %v", err)
	}
	if err := primary.Shutdown(); err != nil {
		t.Fatal(err)
	}
	<-served
	select {
	case m := <-queries:
		t.Errorf("an unsigned query reached the primary: %v", m.Question)
	default:
	}
}
