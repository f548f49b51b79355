package main

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// faults are what a relay does to the messages that pass it.
type faults struct {
	Cut        bool          // nothing passes, open connections end
	LoseBefore float64       // probability that an UPDATE is lost on its way to the server
	LoseAfter  float64       // probability that the server takes an UPDATE and its answer is lost
	Delay      time.Duration // of each message
}

// traffic is what passed a relay towards the server.
type traffic struct {
	Updates    int // without heartbeats
	Heartbeats int
	Reads      int // transfers and queries
	Busy       int // UPDATEs among them that the server answered by SERVFAIL: PowerDNS while its database is locked
}

func (a traffic) plus(b traffic) traffic {
	return traffic{a.Updates + b.Updates, a.Heartbeats + b.Heartbeats, a.Reads + b.Reads, a.Busy + b.Busy}
}

func (a traffic) minus(b traffic) traffic {
	return traffic{a.Updates - b.Updates, a.Heartbeats - b.Heartbeats, a.Reads - b.Reads, a.Busy - b.Busy}
}

// relay is the network between one cluster and the server: it passes TCP on, counts the messages by what they are, and can lose them. The
// counts are the wire's, not those that a cluster reports.
type relay struct {
	listener net.Listener
	server   netip.AddrPort
	zone     string
	pause    func(time.Duration)

	mu      sync.Mutex // guards the fields below
	faults  faults
	traffic traffic
	open    map[net.Conn]struct{}
	closed  bool
	busy    sync.WaitGroup
}

// newRelay listens on loopback, and calls pause for the delay of each message. The caller closes it.
func newRelay(server netip.AddrPort, zone string, pause func(time.Duration)) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, server: server, zone: zone, pause: pause, open: map[net.Conn]struct{}{}}
	r.busy.Add(1)
	go r.accept()
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// behave changes what happens to messages from now on.
func (r *relay) behave(f faults) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = f
	if f.Cut {
		for c := range r.open {
			_ = c.Close()
		}
	}
}

// counted is the traffic since the relay was made.
func (r *relay) counted() traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.traffic
}

// close ends the relay and waits for its connections.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.faults.Cut = true
	for c := range r.open {
		_ = c.Close()
	}
	r.mu.Unlock()
	_ = r.listener.Close()
	r.busy.Wait()
}

func (r *relay) accept() {
	defer r.busy.Done()
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.busy.Add(1)
		go func() {
			defer r.busy.Done()
			r.serve(client)
		}()
	}
}

// hold notes an open connection, so that it can be cut; false where it is to be closed at once.
func (r *relay) hold(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.faults.Cut {
		return false
	}
	r.open[c] = struct{}{}
	return true
}

func (r *relay) drop(c net.Conn) {
	r.mu.Lock()
	delete(r.open, c)
	r.mu.Unlock()
	_ = c.Close()
}

func (r *relay) serve(client net.Conn) {
	defer r.drop(client)
	if !r.hold(client) {
		return
	}
	server, err := net.Dial("tcp", r.server.String())
	if err != nil {
		return
	}
	defer r.drop(server)
	if !r.hold(server) {
		return
	}
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		for {
			raw, err := readFrame(server)
			if err != nil {
				break
			}
			r.noteAnswer(raw)
			if _, err := client.Write(frame(raw)); err != nil {
				break
			}
		}
		_ = client.Close()
	}()
	for {
		raw, err := readFrame(client)
		if err != nil {
			break
		}
		f, before, after := r.note(raw)
		r.pause(f.Delay)
		if before {
			break
		}
		if after {
			r.swallow(client, server, raw)
			break
		}
		if _, err := server.Write(frame(raw)); err != nil {
			break
		}
	}
	_ = client.Close()
	_ = server.Close()
	<-answers
}

// swallow has the server take a message, and the client never hear of it. It ends with the relay at the latest.
func (r *relay) swallow(client, server net.Conn, raw []byte) {
	_ = client.Close()
	other, err := net.Dial("tcp", r.server.String())
	_ = server.Close()
	if err != nil {
		return
	}
	defer r.drop(other)
	if !r.hold(other) {
		return
	}
	if _, err := other.Write(frame(raw)); err == nil {
		_, _ = readFrame(other)
	}
}
