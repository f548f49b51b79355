package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// Listen makes the socket at which successors request the node. It replaces the file at path atomically, so that a successor finds either
// this agent or the previous one. Closing it leaves the file, which may be another agent's by then.
func Listen(path string) (*net.UnixListener, error) {
	return atomicfile.Listen("unixpacket", path)
}

// acceptAgain is the pause after a failed accept.
const acceptAgain = 100 * time.Millisecond

// Give answers successors at l until ctx ends or the node is handed over, and closes l. It reports whether the node was handed over. It
// serves one successor at a time, and refuses others until later.
func Give(ctx context.Context, log *slog.Logger, l *net.UnixListener, a ActiveAgent) (given bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // ends AcceptUnix
	g := &giver{log: log, agent: a}
	var wg sync.WaitGroup
	defer wg.Wait()
	for logged := false; ; {
		c, err := l.AcceptUnix()
		if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) { // most likely a temporary lack of descriptors
			if !logged {
				log.Warn("a successor cannot connect to this agent yet, and waits", "err", err)
				logged = true
			}
			tick.Pause(ctx, acceptAgain)
			continue
		}
		if err != nil {
			cancel()
			wg.Wait()
			return g.given
		}
		logged = false
		wg.Go(func() {
			if g.serve(ctx, c) {
				cancel()
			}
		})
	}
}

type giver struct {
	log   *slog.Logger
	agent ActiveAgent

	mu    sync.Mutex // held while a successor is served
	given bool       // guarded by mu; Give reads it once all calls of meet have ended
}

// serve serves one successor, and reports whether it has the node now.
func (g *giver) serve(ctx context.Context, raw *net.UnixConn) bool {
	c, err := newConn(raw)
	if err != nil {
		g.log.Warn("refused to hand over to a successor; this agent goes on", "err", err)
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.CloseRead() })() // ends receive when the active agent ends
	m, _, err := c.receive(helloWait)
	if err != nil || m.kind != kindHello {
		if !errors.Is(err, io.EOF) { // a process may only check whether an active agent listens
			g.log.Warn("refused to hand over to a successor; this agent goes on", "err", unexpected(m, err))
		}
		return false
	}
	who := m.hello.Claim
	refuse := func(reason error, later bool) {
		g.log.Info("refused to hand over to a successor; this agent goes on", "to", who.String(), "reason", reason)
		_ = c.send(message{kind: kindRefusal, refusal: refusal{Claim: g.agent.Claim(), Reason: reason.Error(), Later: later}}, helloWait)
	}
	if err := who.CheckTakeover(g.agent.Claim()); err != nil {
		refuse(err, false)
		g.agent.Done(who, 0, &RefusedError{Reason: err.Error()})
		return false
	}
	if m.hello.Version != Version {
		refuse(fmt.Errorf("it speaks handover version %d, not %d, and ends instead", Version, m.hello.Version), true)
		g.agent.StepDown(who)
		return false
	}
	if !g.mu.TryLock() {
		refuse(errors.New("it is handing the node over to another agent"), true)
		return false
	}
	defer g.mu.Unlock()
	if g.given {
		refuse(errors.New("it has handed the node over"), true)
		return false
	}
	begun := time.Now()
	end, err := g.agent.AcceptSuccessor(who)
	if err != nil {
		refuse(err, true)
		return false
	}
	g.log.Info("handover begins", "to", who.String())
	if err = g.give(ctx, c, who); err == nil {
		g.given = true
	} else {
		_ = c.send(message{kind: kindRefusal, refusal: refusal{Claim: g.agent.Claim(), Reason: err.Error(), Later: true}}, helloWait)
		// The successor closes its DNS sockets before this connection. Until then, its answers to probes count as the active agent's own.
		c.drain(goodbyeWait)
	}
	end()
	g.agent.Done(who, time.Since(begun), err)
	return g.given
}

// give goes through the steps of a handover. After an error, the active agent is as before.
func (g *giver) give(ctx context.Context, c *conn, who Claim) error {
	if err := g.offer(c); err != nil {
		return err
	}
	if err := g.cache(c); err != nil {
		return err
	}
	m, _, err := c.receive(serveWait)
	if err != nil || m.kind != kindServing {
		return fmt.Errorf("wait for the successor to serve: %w", unexpected(m, err))
	}
	g.log.Info("successor serves on the same sockets", "to", who.String(), "addr", m.serving.Addresses)
	decide, err := g.agent.Yield(ctx, who, m.serving.Addresses)
	if err != nil {
		return fmt.Errorf("check the successor: %w", err)
	}
	err = c.send(message{kind: kindYours}, helloWait, g.agent.Lock())
	if err == nil {
		if m, _, err = c.receive(takenWait); err != nil || m.kind != kindTaken {
			err = fmt.Errorf("wait for the successor to take over: %w", unexpected(m, err))
		}
	}
	decide(err == nil)
	return err
}

func (g *giver) offer(c *conn) error {
	sockets, err := g.agent.Sockets()
	if err != nil {
		return fmt.Errorf("copy sockets: %w", err)
	}
	m := message{kind: kindOffer, offer: offer{Claim: g.agent.Claim()}}
	var files []*os.File
	for _, s := range sockets {
		m.offer.Sockets = append(m.offer.Sockets, name{Protocol: s.Protocol, Address: s.Address})
		files = append(files, s.File)
	}
	defer closeFiles(files)
	return c.send(m, offerWait, files...)
}

// cache sends the content of the cache. If it cannot be read, or is too large, the successor starts with an empty or partial cache.
func (g *giver) cache(c *conn) error {
	w := &chunks{c: c, left: maxCache, until: time.Now().Add(cacheWait)}
	err := g.agent.Snapshot(w)
	if err == nil {
		err = w.flush()
	}
	if w.broken != nil {
		return fmt.Errorf("send the cache: %w", w.broken)
	}
	if err != nil {
		g.log.Warn("cache not handed over completely", "err", err)
	}
	return c.send(message{kind: kindCacheEnd}, helloWait)
}

// chunks is a writer that sends what is written as messages.
type chunks struct {
	c      *conn
	left   int
	until  time.Time
	buffer []byte
	broken error // of the connection
}

func (w *chunks) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		take := min(len(p)-n, maxMessage-1-len(w.buffer))
		w.buffer = append(w.buffer, p[n:n+take]...)
		n += take
		if len(w.buffer) == maxMessage-1 {
			if err := w.flush(); err != nil {
				return n, err
			}
		}
	}
	return len(p), nil
}

func (w *chunks) flush() error {
	if w.broken != nil || len(w.buffer) == 0 {
		return w.broken
	}
	if w.left -= len(w.buffer); w.left < 0 {
		return fmt.Errorf("the cache has more than %d bytes", maxCache)
	}
	w.broken = w.c.send(message{kind: kindCache, cache: w.buffer}, time.Until(w.until))
	w.buffer = w.buffer[:0]
	return w.broken
}

// drain waits until the other side closes the connection.
func (c *conn) drain(wait time.Duration) {
	for deadline := time.Now().Add(wait); ; {
		_, files, err := c.receive(time.Until(deadline))
		closeFiles(files)
		var timeout net.Error
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &timeout) {
			return
		}
	}
}

// unexpected returns an error for anything but the expected message.
func unexpected(m message, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it ended")
	case err != nil:
		return err
	case m.kind == kindRefusal:
		return fmt.Errorf("it gave up: %s", m.refusal.Reason)
	}
	return fmt.Errorf("message %s is out of order", m.kind)
}
