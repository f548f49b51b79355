package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// Listen makes the unix socket at which successors request a handover. It replaces the file at path atomically, so that a successor
// always finds an agent: this one or its predecessor. Closing the listener leaves the file, because it may be another agent's by then.
func Listen(path string) (*net.UnixListener, error) {
	return atomicfile.Listen("unixpacket", path)
}

// acceptAgain is the pause after a failed accept.
const acceptAgain = 100 * time.Millisecond

// Give answers the requests of successors at l until ctx ends or one has taken over, and closes l. It reports whether one has taken over.
// It serves one successor at a time; others are refused and may try again later.
func Give(ctx context.Context, log *slog.Logger, l *net.UnixListener, a ActiveAgent) (given bool) {
	return (&giver{log: log, agent: a, waits: limits}).run(ctx, l)
}

func (g *giver) run(ctx context.Context, l *net.UnixListener) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // ends AcceptUnix
	var wg sync.WaitGroup
	defer wg.Wait()
	for logged := false; ; {
		c, err := l.AcceptUnix()
		if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) { // most likely, the process has no free descriptor at the moment
			if !logged {
				g.log.Warn("cannot accept connections from successors; retried", "err", err)
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
	waits waits

	mu    sync.Mutex // held while a successor is served
	given bool       // a successor has taken over; guarded by mu, except in run, which reads it after all calls of serve have ended
}

// serve answers one successor, and reports whether it has taken over.
func (g *giver) serve(ctx context.Context, raw *net.UnixConn) bool {
	c, err := newConn(raw)
	if err != nil {
		g.log.Warn("refused a connection to the handover socket", "err", err)
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.CloseRead() })() // unblocks receive when this agent ends
	var m hello
	if _, err := c.receive(g.waits.hello, kindHello, &m); err != nil {
		if !errors.Is(err, errEnded) { // no warning: a process may connect only to check whether an agent listens
			g.log.Warn("refused a process at the handover socket, which sent no valid request", "err", err)
		}
		return false
	}
	who := m.Claim
	refuse := func(reason error, later bool) {
		g.log.Info("refused to hand over to a successor; it gets this reason", "to", who.String(), "reason", reason)
		_ = c.send(kindRefusal, refusal{Claim: g.agent.Claim(), Reason: reason.Error(), Later: later}, g.waits.hello)
	}
	if err := who.CheckTakeover(g.agent.Claim()); err != nil {
		refuse(err, false)
		g.agent.Done(who, 0, &RefusedError{Reason: err.Error()})
		return false
	}
	if m.Version != Version {
		refuse(fmt.Errorf("it speaks handover version %d, not %d, and ends instead", Version, m.Version), true)
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
		_ = c.send(kindRefusal, refusal{Claim: g.agent.Claim(), Reason: err.Error(), Later: true}, g.waits.hello)
		// The successor closes its DNS sockets before this connection. Wait for that, because until then its answers to probes count as
		// this agent's own.
		c.awaitClose(ctx, g.waits.goodbye)
	}
	end()
	g.agent.Done(who, time.Since(begun), err)
	return g.given
}

// give performs the steps of a handover. On an error, this agent goes on as the active one.
func (g *giver) give(ctx context.Context, c *conn, who Claim) error {
	if err := g.offer(c); err != nil {
		return err
	}
	if err := c.send(kindCacheEnd, nil, g.waits.hello); err != nil {
		return err
	}
	var m serving
	if _, err := c.receive(g.waits.serve, kindServing, &m); err != nil {
		return fmt.Errorf("wait for the successor to serve: %w", err)
	}
	g.log.Info("successor serves on the same sockets", "to", who.String(), "addr", m.Addresses)
	decide, err := g.agent.Yield(ctx, who, m.Addresses)
	if err != nil {
		return fmt.Errorf("check the successor: %w", err)
	}
	err = c.send(kindYours, nil, g.waits.hello, g.agent.Lock())
	if err == nil {
		if err = c.receiveLast(g.waits.taken, kindTaken); err != nil {
			err = fmt.Errorf("wait for the successor to take over: %w", err)
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
	var files []*os.File
	for _, s := range sockets {
		files = append(files, s.File)
	}
	defer closeFiles(files)
	return c.send(kindOffer, offer{Claim: g.agent.Claim(), Sockets: sockets}, g.waits.offer, files...)
}
