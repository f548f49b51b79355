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

// Taken is the result of a successful handover.
type Taken struct {
	From Claim
	At   time.Time
	Took time.Duration
	Lock *os.File // holds the node's lock; the caller closes it at its end
}

// Take requests the node from the active agent that listens at path. On an error, it keeps nothing of the active agent's, and it has called
// Abandon if it had called Serve. It returns a *RefusedError if the active agent refuses, and ErrNoActiveAgent if no active agent listens.
func Take(ctx context.Context, log *slog.Logger, path string, me Claim, s Successor) (*Taken, error) {
	begun := time.Now()
	d := net.Dialer{Timeout: helloWait}
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
	t := &taker{log: log, conn: c, successor: s}
	taken, err := t.take(ctx, me)
	if err != nil {
		if t.serving {
			// Before the connection ends, because until then the active agent counts the successor's answers as its own.
			s.Abandon()
		}
		return nil, err
	}
	taken.At, taken.Took = time.Now(), time.Since(begun)
	return taken, nil
}

type taker struct {
	log       *slog.Logger
	conn      *conn
	successor Successor
	serving   bool
}

func (t *taker) take(ctx context.Context, me Claim) (*Taken, error) {
	if err := t.conn.send(message{kind: kindHello, hello: hello{Version: Version, Claim: me}}, helloWait); err != nil {
		return nil, err
	}
	m, files, err := t.conn.receive(offerWait)
	if err := t.expect(kindOffer, m, err); err != nil {
		closeFiles(files)
		return nil, fmt.Errorf("wait for the active agent's offer: %w", err)
	}
	active := m.offer.Claim
	t.log.Info("sockets received", "from", active.String(), "sockets", len(files))
	var sockets []Socket
	for i, n := range m.offer.Sockets {
		sockets = append(sockets, Socket{Protocol: n.Protocol, Address: n.Address, File: files[i]})
	}
	if err := t.cache(); err != nil {
		closeFiles(files)
		return nil, fmt.Errorf("receive the cache: %w", err)
	}
	t.serving = true
	addresses, err := t.successor.Serve(ctx, active, sockets)
	if err != nil {
		return nil, fmt.Errorf("serve next to the active agent: %w", err)
	}
	if err := t.conn.send(message{kind: kindServing, serving: serving{Addresses: addresses}}, helloWait); err != nil {
		return nil, err
	}
	t.log.Info("serving next to the active agent", "from", active.String(), "addr", addresses)
	m, files, err = t.conn.receive(yieldWait)
	if err := t.expect(kindYours, m, err); err != nil {
		closeFiles(files)
		return nil, fmt.Errorf("wait for the active agent to hand over: %w", err)
	}
	if err := t.conn.send(message{kind: kindTaken}, helloWait); err != nil {
		closeFiles(files)
		return nil, err
	}
	return &Taken{From: active, Lock: files[0]}, nil
}

// expect turns everything but the wanted message into an error.
func (t *taker) expect(want kind, m message, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it ended")
	case err != nil:
		return err
	case m.kind == kindRefusal:
		return &RefusedError{By: m.refusal.Claim, Reason: m.refusal.Reason, Later: m.refusal.Later}
	case m.kind != want:
		return fmt.Errorf("message %s is out of order", m.kind)
	}
	return nil
}

// cache streams the content of the active agent's cache to the successor. Entries that the successor does not read are discarded.
func (t *taker) cache() error {
	r, w := io.Pipe()
	restored := make(chan struct{})
	go func() { // ends with the pipe
		defer close(restored)
		t.successor.Restore(r)
		_, _ = io.Copy(io.Discard, r) // so that the writer below never blocks after Restore has returned
	}()
	err := t.chunks(w)
	_ = w.CloseWithError(err) // nil is the end of file
	<-restored
	return err
}

func (t *taker) chunks(w io.Writer) error {
	until := time.Now().Add(cacheWait + helloWait)
	for size := 0; ; {
		m, files, err := t.conn.receive(time.Until(until))
		if err == nil && m.kind == kindCacheEnd {
			return nil
		}
		if err := t.expect(kindCache, m, err); err != nil {
			closeFiles(files)
			return err
		}
		if size += len(m.cache); size > maxCache {
			return fmt.Errorf("the cache has more than %d bytes", maxCache)
		}
		_, _ = w.Write(m.cache) // the reader takes all of it
	}
}
