package listener

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/neardns/neardns/pkg/testutil"
)

// droppedOf is the count that a scrape shows.
func droppedOf(t *testing.T, s *Server) float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(s.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "neardns_udp_dropped_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

// TestOverflow: if no program reads the socket, a pod's queries that do not fit are counted by the server that has the socket, and not by
// one that takes it over later. Another pod's query is answered once the socket is read again.
func TestOverflow(t *testing.T) {
	host, pods := twoPods(t)
	eachWay(t, host, steering, func(t *testing.T, s *Server, cfg Config, h *handler, q []byte) {
		flood, fast := dialFrom(t, pods["slow"], cfg), dialFrom(t, pods["fast"], cfg)
		if n := droppedOf(t, s); n != 0 {
			t.Fatalf("%.0f dropped before anything was asked", n)
		}
		s.Pause()
		sent := 0
		testutil.Eventually(t, func() error {
			for range 1000 {
				if _, err := flood.Write(q); err != nil {
					return err
				}
				sent++
			}
			if droppedOf(t, s) < 1000 {
				return errors.New("too few drops are counted")
			}
			return nil
		})
		full := droppedOf(t, s)
		if full > float64(sent) {
			t.Errorf("%.0f of %d are counted", full, sent)
		}
		s.Resume()
		testutil.Eventually(t, func() error {
			fast.SetDeadline(time.Now().Add(testutil.Silence)) // one attempt
			if _, err := fast.Write(q); err != nil {
				return err
			}
			_, err := fast.Read(make([]byte, 512))
			return err
		})

		sockets, err := s.Sockets()
		if err != nil {
			t.Fatal(err)
		}
		next := New(s.log, nil)
		host.Do(func() { err = next.Start(t.Context(), cfg, h.build, sockets) })
		if err != nil {
			t.Fatal(err)
		}
		defer next.Stop() //nolint:errcheck // the test is over
		if n := droppedOf(t, next); n != 0 {
			t.Errorf("who takes over counts %.0f of before", n)
		}
		before := droppedOf(t, s)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if n := droppedOf(t, s); n < before {
			t.Errorf("%.0f counted, %.0f after the end", before, n)
		}
	})
}

// TestOverflowWraps: the kernel counts in 32 bits, and an unknown count is no loss.
func TestOverflowWraps(t *testing.T) {
	for _, tc := range []struct {
		before, now int64
		want        uint64
	}{{5, 7, 2}, {1<<32 - 1, 1, 2}, {-1, 7, 0}, {7, -1, 0}} {
		if got := since(tc.before, tc.now); got != tc.want {
			t.Errorf("from %d to %d: %d", tc.before, tc.now, got)
		}
	}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if n := drops(conn); n != 0 {
		t.Errorf("%d of a new socket", n)
	}
	conn.Close()
	if n := drops(conn); n != -1 {
		t.Errorf("%d of a closed one", n)
	}
}
