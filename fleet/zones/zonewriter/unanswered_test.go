package zonewriter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// A program between cluster and primary lets reads pass, and no update or none of their answers. The host waits after the second try,
// longer each time, and its status and one log line have the reason.
func TestUpdatesWithoutAnswer(t *testing.T) {
	const most = 16 // two tries at once, then pauses of 10 s, 20 s, ..., 15 min
	for name, c := range map[string]struct {
		reason    rfc2136.Kind
		heartbeat time.Duration
		treat     func(c *dns.Conn, m *dns.Msg) // an update; the connection is closed then
	}{
		"reset":       {rfc2136.NoAnswer, 0, func(*dns.Conn, *dns.Msg) {}},
		"dropped":     {rfc2136.NoAnswer, 0, func(c *dns.Conn, _ *dns.Msg) { _, _ = c.ReadMsg() }},
		"unusable":    {rfc2136.BadAnswer, 0, func(c *dns.Conn, m *dns.Msg) { _ = c.WriteMsg(m) }},
		"unreachable": {rfc2136.Unreachable, 0, nil},
		"heartbeats":  {rfc2136.NoAnswer, 5 * time.Minute, func(*dns.Conn, *dns.Msg) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				dials := 0
				var failed atomic.Int64
				lost := func() {
					if failed.Add(1) > 1000 { // else the loop would not let the clock move
						cancel()
					}
				}
				way := testutil.Piped(func(far *dns.Conn, m *dns.Msg) {
					if m.Opcode == dns.OpcodeUpdate {
						lost()
						c.treat(far, m)
						return
					}
					_ = testutil.Reply(far, m, soa(t, 1), soa(t, 1))
				})
				var logged bytes.Buffer
				p := newPublisher(t, Options{Heartbeat: c.heartbeat, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&logged, nil)),
					Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
						if dials++; c.treat == nil && dials%2 == 0 { // reads and updates take turns
							lost()
							return nil, errors.New("cut off")
						}
						return way(ctx, network, address)
					}})
				testutil.Must(t, p.Set(publication("www", "192.0.2.1")))
				p.Run(ctx)
				limit := most
				if c.heartbeat > 0 {
					limit += int(time.Hour / (24 * time.Second)) // a heartbeat rests for at least that long after a failure
				}
				if n := int(failed.Load()); n > limit {
					t.Errorf("%d updates within an hour, want at most %d", n, limit)
				}
				if st, _ := p.Status("www." + origin); st.Conflict == nil || st.Conflict.Reason != zone.Reason(c.reason) || st.Attempt < 2 {
					t.Errorf("%+v: %+v", st, st.Conflict)
				}
				if n := strings.Count(logged.String(), "a host's records are not as wanted"); n != 1 {
					t.Errorf("%d lines are logged about the host, want 1:\n%s", n, logged.String())
				}
			})
		})
	}
}

// A primary whose transfer never ends, although each message comes in time, is one that cannot be read.
func TestEndlessTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var reads atomic.Int64
		p := newPublisher(t, Options{Dial: testutil.Piped(func(far *dns.Conn, m *dns.Msg) {
			reads.Add(1)
			for err := testutil.Reply(far, m, soa(t, 1)); err == nil; time.Sleep(4 * time.Second) {
				err = testutil.Reply(far, m, &dns.A{Hdr: dns.RR_Header{Name: origin, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(192, 0, 2, 1)})
			}
		})})
		p.Run(ctx)
		time.Sleep(time.Minute) // the server's goroutines end
		if reads.Load() < 20 || rfc2136.KindOf(p.Zone().Err) != rfc2136.Cut {
			t.Errorf("%d reads within an hour: %v", reads.Load(), p.Zone().Err)
		}
	})
}

// A busy primary has half a minute for an answer, unless a hang of that time could delay a heartbeat.
func TestAnswerTime(t *testing.T) {
	for heartbeat, want := range map[time.Duration]time.Duration{
		0: 30 * time.Second, 5 * time.Second: 5 * time.Second, time.Minute: 6 * time.Second, 5 * time.Minute: 30 * time.Second,
		time.Hour: 30 * time.Second,
	} {
		if got := (Options{Heartbeat: heartbeat}).answerTime(); got != want {
			t.Errorf("with a heartbeat every %s an answer has %s, want %s", heartbeat, got, want)
		}
	}
}
