package forward

import (
	"sync"
	"time"
)

// Limits of idle lines.
const (
	// idleLimit is how long a connection may be idle. CoreDNS closes idle TCP connections after 10 s (core/dnsserver's default), so the
	// agent must close them sooner.
	idleLimit = 8 * time.Second
	// maxIdle is the maximum of idle connections per server and protocol. It is half of the default limit of misses in flight, which is
	// also one client's share of them. With fewer, a busy node would open and close connections all the time.
	maxIdle = 512
)

// pool has the idle connections to one server over one protocol. It reuses the one that has been idle longest, so that the source ports of
// UDP queries vary.
type pool struct {
	bufs *buffers

	mu     sync.Mutex // guards the fields below
	lines  []*line
	sweep  *time.Timer // will run expire; nil: nothing is scheduled
	closed bool
}

// take returns an idle line, or nil.
func (p *pool) take() *line {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.lines) > 0 {
		l := p.lines[0]
		p.lines = append(p.lines[:0], p.lines[1:]...)
		if !p.old(l, now) {
			return l
		}
		l.close(p.bufs)
	}
	return nil
}

// give returns a connection to the pool. Its last answer must have been read completely.
func (p *pool) give(l *line) {
	l.idle = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.lines) >= maxIdle || p.old(l, l.idle) {
		l.close(p.bufs)
		return
	}
	p.lines = append(p.lines, l)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleLimit, p.expire)
	}
}

func (p *pool) old(l *line, now time.Time) bool {
	return now.Sub(l.idle) >= idleLimit || now.After(l.until)
}

// expire closes connections that were idle for too long or are too old. It runs again while others are idle.
func (p *pool) expire() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.lines[:0]
	for _, l := range p.lines {
		if p.old(l, now) {
			l.close(p.bufs)
		} else {
			kept = append(kept, l)
		}
	}
	clear(p.lines[len(kept):])
	p.lines = kept
	p.sweep = nil
	if len(p.lines) > 0 && !p.closed {
		p.sweep = time.AfterFunc(idleLimit/4, p.expire)
	}
}

// flush closes all idle connections, for example because the endpoint at their other end is gone.
func (p *pool) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		l.close(p.bufs)
	}
	p.lines = nil
}

// close closes the pool. Connections that are returned to it later are closed at once.
func (p *pool) close() {
	p.flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}
