package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"
)

// Taken is the result of a handover, for the successor.
type Taken struct {
	From Claim
	At   time.Time
	Took time.Duration
	Lock *os.File // the node's lock; the caller closes it when the agent ends
}

// Take requests the node from the active agent that listens at path, and receives its sockets and lock. On an error, it has closed
// all received files that it did not pass to s.Serve, and has called s.Abandon if it had called s.Serve. It returns a *RefusedError if the
// active agent refuses, and ErrNoActiveAgent if no agent listens.
func Take(ctx context.Context, log *slog.Logger, path string, me Claim, s Successor) (*Taken, error) {
	return (&taker{log: log, successor: s, waits: limits}).run(ctx, path, me)
}

func (t *taker) run(ctx context.Context, path string, me Claim) (*Taken, error) {
	begun := time.Now()
	d := net.Dialer{Timeout: t.waits.hello}
	raw, err := d.DialContext(ctx, "unixpacket", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, ErrNoActiveAgent
	case err != nil:
		return nil, err
	}
	c, err := newConn(raw.(*net.UnixConn))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.CloseRead() })()
	t.conn = c
	taken, err := t.take(ctx, me)
	if err != nil {
		if t.serving {
			// Abandon before the connection is closed: until then, the active agent counts the successor's answers as its own.
			t.successor.Abandon()
		}
		return nil, err
	}
	taken.At, taken.Took = time.Now(), time.Since(begun)
	return taken, nil
}

type taker struct {
	log       *slog.Logger
	successor Successor
	waits     waits
	conn      *conn
	serving   bool // successor.Serve was called
}

func (t *taker) take(ctx context.Context, me Claim) (*Taken, error) {
	if err := t.conn.send(kindHello, hello{Version: Version, Claim: me}, t.waits.hello); err != nil {
		return nil, err
	}
	var m offer
	files, err := t.conn.receive(t.waits.offer, kindOffer, &m)
	if err != nil {
		return nil, fmt.Errorf("wait for the active agent's offer: %w", err)
	}
	active := m.Claim
	t.log.Info("received the active agent's sockets", "from", active.String(), "sockets", len(files))
	sockets := m.Sockets
	for i, f := range files {
		sockets[i].File = f
	}
	if err := t.passCache(); err != nil {
		closeFiles(files)
		return nil, fmt.Errorf("wait for the end of the cache: %w", err)
	}
	t.serving = true
	addresses, err := t.successor.Serve(ctx, active, sockets)
	if err != nil {
		return nil, fmt.Errorf("serve next to the active agent: %w", err)
	}
	if err := t.conn.send(kindServing, serving{Addresses: addresses}, t.waits.hello); err != nil {
		return nil, err
	}
	t.log.Info("ready to take over: answers at addr; the active agent stops reading", "from", active.String(), "addr", addresses)
	files, err = t.conn.receive(t.waits.yield, kindYours, nil)
	if err != nil {
		return nil, fmt.Errorf("wait for the active agent to hand over: %w", err)
	}
	// This send fails if the active agent has given up or has ended, even if that happened while this process was stopped (SIGSTOP).
	if err := t.conn.send(kindTaken, nil, t.waits.hello); err != nil {
		closeFiles(files)
		return nil, fmt.Errorf("take over from an active agent that has given up or has ended: %w", err)
	}
	return &Taken{From: active, Lock: files[0]}, nil
}

// passCache reads past the cache that an active agent of an earlier build sends; others have saved it in the snapshot file.
func (t *taker) passCache() error {
	until := time.Now().Add(t.waits.cache)
	for {
		if _, err := t.conn.receive(time.Until(until), kindCache, new([]byte)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
