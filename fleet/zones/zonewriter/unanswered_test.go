package zonewriter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/fleet/zones/zone"
)

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 60}
}

// answerReads answers one message on a connection, from a zone that has only its SOA. It leaves updates to update.
func answerReads(c *dns.Conn, update func(*dns.Conn, *dns.Msg)) {
	defer c.Close()
	m, err := c.ReadMsg()
	if err != nil {
		return
	}
	if m.Opcode == dns.OpcodeUpdate {
		update(c, m)
		return
	}
	soa := &dns.SOA{Hdr: header(m.Question[0].Name, dns.TypeSOA), Ns: ".", Mbox: ".", Serial: 1}
	answer := new(dns.Msg).SetReply(m)
	answer.Answer = []dns.RR{soa, soa}
	_ = c.WriteMsg(answer)
}

// A program between cluster and primary lets reads pass, and no update or none of their answers. The host waits after the second try,
// longer each time, and its status and one log line have the reason.
func TestUpdatesWithoutAnswer(t *testing.T) {
	const origin, most = "shared.example.", 16 // two tries at once, then pauses of 10 s, 20 s, ..., 15 min
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
				update := func(far *dns.Conn, m *dns.Msg) {
					lost()
					c.treat(far, m)
				}
				var logged bytes.Buffer
				p, err := New(Options{Zone: origin, Server: "192.0.2.1:53", Identity: zone.Identity{Cluster: "cluster1", Instance: "i"},
					Heartbeat: c.heartbeat, Poll: time.Hour, Log: slog.New(slog.NewTextHandler(&logged, nil)),
					Dial: func(context.Context, string, string) (net.Conn, error) {
						if dials++; c.treat == nil && dials%2 == 0 { // reads and updates take turns
							lost()
							return nil, errors.New("cut off")
						}
						near, far := net.Pipe()
						go answerReads(&dns.Conn{Conn: far}, update)
						return near, nil
					}})
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Set(zone.Publication{Host: "www." + origin, Strategy: zone.Simple, TTL: 60,
					Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}); err != nil {
					t.Fatal(err)
				}
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
	const origin = "shared.example."
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		reads := 0
		serve := func(conn net.Conn) {
			far := &dns.Conn{Conn: conn}
			defer far.Close()
			m, err := far.ReadMsg()
			for n := 0; err == nil; n++ {
				answer := new(dns.Msg).SetReply(m)
				answer.Answer = []dns.RR{&dns.SOA{Hdr: header(origin, dns.TypeSOA), Ns: ".", Mbox: ".", Serial: 1}}
				if n > 0 {
					answer.Answer = []dns.RR{&dns.TXT{Hdr: header(origin, dns.TypeTXT), Txt: []string{"a"}}}
				}
				err = far.WriteMsg(answer)
				time.Sleep(4 * time.Second)
			}
		}
		p, err := New(Options{Zone: origin, Server: "192.0.2.1:53", Identity: zone.Identity{Cluster: "cluster1", Instance: "i"},
			Dial: func(context.Context, string, string) (net.Conn, error) {
				reads++
				near, far := net.Pipe()
				go serve(far)
				return near, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		p.Run(ctx)
		time.Sleep(time.Minute) // the server's goroutines end
		if reads < 20 || rfc2136.KindOf(p.Zone().Err) != rfc2136.Cut {
			t.Errorf("%d reads within an hour: %v", reads, p.Zone().Err)
		}
	})
}
