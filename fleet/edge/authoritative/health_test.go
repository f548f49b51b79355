package authoritative_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/edge/authoritative"
	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// TestHealth: sick addresses leave an answer while any is healthy.
func TestHealth(t *testing.T) {
	app, simple := "app."+origin, "simple."+origin
	check := &zone.Health{Protocol: zone.HTTPS, Port: 443, Path: "/healthz"}
	irish, german, all := pub(app, "ie", 1, "192.0.2.1", "192.0.2.2"), pub(app, "de", 1, "192.0.2.3"), zone.Publication{Host: simple, Strategy: zone.Simple,
		Addresses: addresses("192.0.2.5", "192.0.2.6"), Health: check}
	named := *check
	named.Host = "probe.example.org."
	irish.Health, german.Health = check, &named
	hosts := map[string]string{"192.0.2.3": "probe.example.org", "192.0.2.5": "simple.shared.example", "192.0.2.6": "simple.shared.example"}
	records := append(base(t), published(irish, german, all)...)
	for name, row := range map[string]struct {
		sick      []string
		app, both string
	}{
		"all well":             {nil, "192.0.2.1 192.0.2.2", "192.0.2.5 192.0.2.6"},
		"one of a cluster":     {[]string{"192.0.2.1", "192.0.2.5"}, "192.0.2.2", "192.0.2.6"},
		"a cluster":            {[]string{"192.0.2.1", "192.0.2.2", "192.0.2.6"}, "192.0.2.3", "192.0.2.5"},
		"all: as if well, all": {[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.5", "192.0.2.6"}, "192.0.2.1 192.0.2.2", "192.0.2.5 192.0.2.6"},
	} {
		s := serveWatched(t, authoritative.Options{}, records, func(of string, checks map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
			if of != origin || len(every(checks)) != 5 {
				t.Errorf("%s: watched %s, %v", name, of, checks)
			}
			out := map[healthcheck.Check]authoritative.Target{}
			for _, c := range every(checks) {
				if c.Protocol != healthcheck.HTTPS || c.Port != 443 || c.Path != "/healthz" || c.Host != cmp.Or(hosts[c.Address.String()], "app.shared.example") {
					t.Errorf("%s: %v", name, c)
				}
				out[c] = health(!slices.Contains(row.sick, c.Address.String()))
			}
			return out
		})
		for range 100 {
			if got := said(put(t, s, udp("10.1.0.1"), question(app, dns.TypeA))); got != row.app {
				t.Fatalf("%s: %q, want %q", name, got, row.app)
			}
			if got := said(put(t, s, udp("10.1.0.1"), question(simple, dns.TypeA))); got != row.both {
				t.Fatalf("%s: %q, want %q", name, got, row.both)
			}
		}
	}
}

// TestForged: a peer's text names addresses that the zone does not hold for the host.
func TestForged(t *testing.T) {
	app := "app." + origin
	records := append(base(t), published(pub(app, "", 1, "192.0.2.1"))...)
	for _, rr := range published(zone.Publication{}, pub(app, "", 1000, "203.0.113.66")) {
		if rr.Header().Rrtype == dns.TypeTXT && strings.Contains(rr.Header().Name, "cluster01") {
			records = append(records, rr)
		}
	}
	s := serve(t, authoritative.Options{}, records)
	for range 1_000 {
		if got := said(put(t, s, udp("10.1.0.1"), question(app, dns.TypeA))); got != "192.0.2.1" {
			t.Fatalf("%q", got)
		}
	}
}

// TestTwoDefaults: of two default geos the first by its letters counts, at every edge: whatever order the records came in.
func TestTwoDefaults(t *testing.T) {
	app := "app." + origin
	german, irish := pub(app, "de", 1, "192.0.2.1"), pub(app, "ie", 100, "192.0.2.2")
	german.DefaultGeo, irish.DefaultGeo = true, true
	records := append(base(t), published(irish, german)...)
	for range 2 {
		s := serve(t, authoritative.Options{}, records)
		for range 200 {
			if got := said(put(t, s, udp("10.9.0.1"), question(app, dns.TypeA))); got != "192.0.2.1" {
				t.Fatalf("%q, want the cluster of DE", got)
			}
		}
		slices.Reverse(records)
	}
}

// TestCheckedIsHeld: a peer's text makes the edge probe no address that the zone does not have for the host, so that the peer cannot use up
// what edges probe.
func TestCheckedIsHeld(t *testing.T) {
	app := "app." + origin
	ours, forged := pub(app, "", 1, "192.0.2.1"), pub(app, "", 1, "192.0.2.1", "203.0.113.66")
	ours.Health = &zone.Health{Protocol: zone.TCP, Port: 443}
	forged.Health = &zone.Health{Protocol: zone.TCP, Port: 22}
	records := slices.DeleteFunc(append(base(t), published(ours, forged)...), func(rr dns.RR) bool {
		a, ok := rr.(*dns.A)
		return ok && a.A.String() == "203.0.113.66"
	})
	var checked []string
	if _, err := authoritative.Compile(origin, records, func(_ string, checks map[string][]healthcheck.Check) map[healthcheck.Check]authoritative.Target {
		for _, c := range every(checks) {
			checked = append(checked, fmt.Sprintf("%s:%d", c.Address, c.Port))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(checked)
	if want := []string{"192.0.2.1:22", "192.0.2.1:443"}; !slices.Equal(checked, want) {
		t.Errorf("%v, want %v", checked, want)
	}
}
