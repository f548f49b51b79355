package server_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	mdns "github.com/miekg/dns"
)

// TestPipelinesOverChanges asks over TCP, 20 questions at once on each connection, while the configuration is reloaded and the sockets are
// handed over from one server to the next, as two agents do. Each question is answered once, under its own ID. A connection ends between
// two windows only: what was sent is answered whole or, where it crossed the connection's end, not at all, and then it is asked anew.
func TestPipelinesOverChanges(t *testing.T) {
	up := newUpstream(t, address("10.0.0.1"))
	cfg := config(t, up)
	s := newServer(slog.New(slog.DiscardHandler))
	if err := s.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()

	const clients = 6
	var stop atomic.Bool
	var windows, crossed, fresh atomic.Int64
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			p := &pipeline{at: addressOf(cfg)}
			defer p.close()
			for first := uint16(client * 7777); !stop.Load(); first += inWindow {
				names := map[uint16]string{}
				for i := range uint16(inWindow) {
					names[first+i] = fmt.Sprintf("kept-%d.cluster.local.", i)
					if i%3 == 0 {
						names[first+i] = fmt.Sprintf("new-%d.cluster.local.", fresh.Add(1))
					}
				}
				for try := 0; ; try++ {
					answered, err := p.ask(first, names)
					if err == nil {
						break
					}
					p.close()
					if answered > 0 || try == 3 {
						t.Errorf("try %d: %d of %d are answered: %v", try, answered, inWindow, err)
						return
					}
					crossed.Add(1)
				}
				windows.Add(1)
			}
		})
	}
	between := func() {
		before := windows.Load()
		waitFor(t, "questions between changes", func() bool { return windows.Load() > before+2*clients })
	}
	for i := range 10 {
		next := cfg
		next.Cache.Entries = 1000 + i
		if err := s.Restart(t.Context(), next); err != nil {
			t.Errorf("reload %d: %v", i, err)
		}
		between()
	}
	if n := crossed.Load(); n > 0 {
		t.Errorf("reloads ended connections: %d windows were asked anew", n)
	}
	const handovers = 3
	for range handovers {
		sockets, err := s.Sockets()
		if err != nil {
			t.Fatal(err)
		}
		next := newServer(slog.New(slog.DiscardHandler))
		if err := next.StartOn(t.Context(), cfg, sockets); err != nil {
			t.Fatal(err)
		}
		between()
		s.Pause()
		between() // what is open goes on, and the other one accepts
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		s = next
		between()
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d windows of %d questions, %d asked anew", windows.Load(), inWindow, crossed.Load())
	if n := crossed.Load(); n > clients*handovers {
		t.Errorf("%d windows were asked anew, with %d connections", n, clients*handovers)
	}
}

// inWindow is how many questions a pipeline sends at once.
const inWindow = 20

// pipeline is a client's connection; it is opened when it is needed.
type pipeline struct {
	at   string
	conn *mdns.Conn
}

func (p *pipeline) close() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// ask sends questions in one write and awaits their answers. It returns how many came, and an error where that is not each one once.
func (p *pipeline) ask(first uint16, names map[uint16]string) (answered int, err error) {
	if p.conn == nil {
		conn, err := net.Dial("tcp", p.at)
		if err != nil {
			return 0, err
		}
		p.conn = &mdns.Conn{Conn: conn}
	}
	var all []byte
	for i := range uint16(len(names)) {
		q := question(names[first+i], mdns.TypeA)
		q.Id = first + i
		wire, err := q.Pack()
		if err != nil {
			return 0, err
		}
		all = append(binary.BigEndian.AppendUint16(all, uint16(len(wire))), wire...)
	}
	if _, err := p.conn.Conn.Write(all); err != nil {
		return 0, err
	}
	seen := map[uint16]bool{}
	for len(seen) < len(names) {
		m, err := p.conn.ReadMsg()
		if err != nil {
			return len(seen), err
		}
		if seen[m.Id] || len(m.Question) != 1 || m.Question[0].Name != names[m.Id] || len(m.Answer) != 1 {
			return len(seen) + 1, errors.New("nobody asked for this: " + m.String())
		}
		seen[m.Id] = true
	}
	return len(seen), nil
}
