package server_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/neardns/neardns/internal/dns/server"
)

// counted returns the values of the server's own metrics, by name and reason.
func counted(t testing.TB, s *server.Server) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "neardns_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

// client is a TCP connection from an address that the test chooses.
type client struct {
	*net.TCPConn
	t *testing.T
}

func dial(t *testing.T, from, server string) client {
	t.Helper()
	c, err := tryDial(t, from, server)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t *testing.T, from, server string) (client, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.Dial("tcp", server)
	if err != nil {
		return client{}, err
	}
	t.Cleanup(func() { conn.Close() })
	return client{conn.(*net.TCPConn), t}, nil
}

func (c client) ask(name string) error {
	c.t.Helper()
	wire, err := question(name, mdns.TypeA).Pack()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)); err != nil {
		return err
	}
	length := make([]byte, 2)
	if _, err := io.ReadFull(c, length); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, binary.BigEndian.Uint16(length)))
	return err
}

// TestConnectionFlood opens many connections from one address, idle ones and ones that send a byte or two, next to those of quiet
// neighbours: new connections of the flood replace its own longest idle ones, and no other client's.
func TestConnectionFlood(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	cfg.Connections = 32
	s := start(t, cfg)
	var quiet []client
	for i := range 4 {
		c := dial(t, fmt.Sprintf("127.0.1.%d", i), addressOf(cfg))
		if err := c.ask("quiet.example.org."); err != nil {
			t.Fatal(err)
		}
		quiet = append(quiet, c)
	}
	var flood []client
	for i := range 200 {
		c := dial(t, "127.0.2.1", addressOf(cfg))
		if i%2 == 0 {
			c.Write([]byte{0, 40}[:1+i%3/2]) // the beginning of a query that never comes
		}
		flood = append(flood, c)
	}
	waitFor(t, "the flood is accepted and cut", func() bool { return counted(t, s)["tcp_connections_shed_total idle"] >= 186 })
	got := counted(t, s)
	if open := got["tcp_connections"]; open < 17 || open > 18 {
		t.Errorf("%v connections are open, want the neighbours' 4 and half of the 28 other places", open)
	}
	if n := got["tcp_connections_shed_total refused"]; n > 0 { // also where accepting is faster than reading
		t.Errorf("%v connections were refused although idle ones could make room", n)
	}
	for i, c := range quiet {
		if err := c.ask("quiet.example.org."); err != nil {
			t.Errorf("neighbour %d: %v", i, err)
		}
	}
	if err := dial(t, "127.0.1.9", addressOf(cfg)).ask("newcomer.example.org."); err != nil {
		t.Errorf("a newcomer: %v", err)
	}
	if err := dial(t, "127.0.2.1", addressOf(cfg)).ask("own.example.org."); err != nil {
		t.Errorf("the flood's own next question: %v", err)
	}
	if n, err := flood[0].Read(make([]byte, 1)); err == nil { // waits for as long as the connection is open
		t.Errorf("the flood's longest idle connection has %d bytes", n)
	}
	if err := flood[199].ask("youngest.example.org."); err != nil {
		t.Errorf("the flood's youngest connection was closed, want the longest idle ones: %v", err)
	}
	for _, c := range append(flood, quiet...) {
		c.Close()
	}
	waitFor(t, "closed connections are forgotten", func() bool { return counted(t, s)["tcp_connections"] <= 2 })
}

// TestLimitsReload: another configuration's limits hold without a restart.
func TestLimitsReload(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	s := start(t, cfg)
	if got := counted(t, s)["tcp_connections_limit"]; got != 1024 {
		t.Errorf("limit %v by default", got)
	}
	cfg.Connections, cfg.Misses = 20, 500
	if err := s.Restart(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if got := counted(t, s); got["tcp_connections_limit"] != 20 || got["udp_in_flight_limit"] != 756 {
		t.Errorf("limits after a reload: %v", got)
	}
	cfg.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	cfg.Connections = 30
	if err := s.Restart(t.Context(), cfg); err == nil {
		t.Fatal("an address that is nowhere was taken")
	}
	if got := counted(t, s)["tcp_connections_limit"]; got != 20 {
		t.Errorf("limit %v after a reload that was refused", got)
	}
}
