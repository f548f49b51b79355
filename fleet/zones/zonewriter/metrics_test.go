package zonewriter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// A primary that was away for long is queried again within ten seconds of its return, by few at a time.
func TestLongAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials, seen := 0, map[time.Duration]bool{}
		p := newPublisher(t, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			dials++
			return nil, errors.New("no route")
		}})
		for n := range 1000 {
			wait := time.Until(p.round(t.Context()))
			testutil.Must(t, p.Set(publication("www", fmt.Sprintf("192.0.2.%d", n%256))))
			p.round(t.Context()) // it is not due, even with a change
			if seen[wait.Round(100*time.Millisecond)] = true; wait > 8*time.Second || dials != n+1 {
				t.Fatalf("after %d failures it is asked after %s, with %d connections", p.failures, wait, dials)
			}
			time.Sleep(wait)
		}
		if len(seen) < 10 {
			t.Errorf("all ask at the same time: %v", seen)
		}
	})
}

// A cluster looks at the zone several times while a heartbeat should change, or each silence would begin again.
func TestPoll(t *testing.T) {
	for beat, want := range map[time.Duration]time.Duration{0: 5 * time.Second, 5 * time.Minute: 5 * time.Second, 15 * time.Second: 5 * time.Second, 6 * time.Second: 2 * time.Second} {
		if p := newPublisher(t, Options{Heartbeat: beat}); p.o.Poll != want {
			t.Errorf("with a heartbeat of %s it asks every %s; want %s", beat, p.o.Poll, want)
		}
	}
}

// Messages keep the distance that the rate asks for, be the primary ever so quick.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 5
		var sent []time.Time
		p := newPublisher(t, Options{Rate: rate,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				sent = append(sent, time.Now())
				return nil, errors.New("no route")
			}})
		for range 4 {
			if err := p.update(t.Context(), nil, nil); err == nil {
				t.Error("a message passes without a connection")
			}
		}
		time.Sleep(time.Second)
		_ = p.update(t.Context(), nil, nil)
		if len(sent) != 5 {
			t.Fatalf("%d messages were sent, want 5", len(sent))
		}
		for i, want := range []time.Duration{time.Second / rate, time.Second / rate, time.Second / rate, time.Second} {
			if got := sent[i+1].Sub(sent[i]); got != want {
				t.Errorf("message %d follows after %s, want %s", i+1, got, want)
			}
		}
	})
}

// The longer a whole zone takes that a server sends for each change, the more rarely a cluster looks; never more rarely than it must for
// heartbeats.
func TestCostlyLooks(t *testing.T) {
	for _, c := range []struct{ beat, cost, want time.Duration }{
		{5 * time.Minute, 0, 5 * time.Second},
		{5 * time.Minute, 100 * time.Millisecond, 5 * time.Second},
		{5 * time.Minute, time.Second, 20 * time.Second},
		{5 * time.Minute, 10 * time.Second, 30 * time.Second},
		{time.Minute, 10 * time.Second, 20 * time.Second},
		{0, 10 * time.Second, 30 * time.Second},
	} {
		p := newPublisher(t, Options{Heartbeat: c.beat})
		p.cost = c.cost
		if got := p.rest(); got != c.want {
			t.Errorf("with a heartbeat of %s and a zone that takes %s it looks every %s, want %s", c.beat, c.cost, got, c.want)
		}
	}
}

// A whole zone in place of increments is what a look costs.
func TestCostOfLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost = 3 * time.Second
		whole := true
		p := newPublisher(t, Options{Dial: testutil.Piped(func(c *dns.Conn, m *dns.Msg) {
			time.Sleep(cost)
			answer := []dns.RR{soa(t, 2), soa(t, 1), soa(t, 2), soa(t, 2)}
			if whole {
				answer = []dns.RR{soa(t, 2), soa(t, 2)}
			}
			testutil.Check(t, testutil.Reply(c, m, answer...))
		})})
		for _, want := range []time.Duration{cost, 0} {
			p.state = parsed(t, 1)
			if _, err := p.read(t.Context(), false, false); err != nil || p.cost != want {
				t.Errorf("whole: %t: %v, %s", whole, err, p.cost)
			}
			whole = false
		}
	})
}

// A zone that no program reads any more has no age, or an alert would tell of a DNSZone that was deleted. Its counters stay, and so do
// others' gauges.
func TestMetricsEnd(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	for _, name := range []string{"a.example.", "b.example."} {
		m.spec(name)
		m.read(name, ZoneStatus{State: &zone.State{Serial: 7}, Read: time.Unix(1e9, 0), Silent: map[string]time.Duration{"c1": time.Minute}})
	}
	m.ended("a.example.")
	families, err := registry.Gather()
	testutil.Must(t, err)
	var left []string
	for _, f := range families {
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetName() == "zone" {
					left = append(left, f.GetName()+" "+l.GetValue())
				}
			}
		}
	}
	want := []string{
		"neardns_zone_heartbeat_age_seconds b.example.",
		"neardns_zone_read_timestamp_seconds b.example.",
		"neardns_zone_record_spec_updates_total a.example.",
		"neardns_zone_record_spec_updates_total b.example.",
		"neardns_zone_serial b.example.",
	}
	testutil.Equal(t, "left are", want, left)
}
