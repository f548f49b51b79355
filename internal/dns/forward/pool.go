package forward

import (
	"sync"
	"time"
)

// Limits of idle lines.
const (
	// CoreDNS closes an idle stream after 10 s (core/dnsserver's default), so the agent must close it first.
	idleLimit = 8 * time.Second
	// maxIdle is the number of idle lines per server and protocol: half of the default limit of misses in flight, one client's share.
	// With fewer, a busy node would open and close connections all the time.
	maxIdle = 512
)

// pool holds idle lines to one server. It reuses the oldest first, which varies the source port of datagrams.
type pool struct {
	bufs *buffers

	mu     sync.Mutex // guards the fields below
	lines  []*line
	sweep  *time.Timer // armed while lines wait
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

// give returns a line to the pool. Its answer must have been read whole.
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

// expire closes lines that were idle for too long, and runs again while lines are idle.
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

// flush closes all idle lines, because their endpoint is gone.
func (p *pool) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		l.close(p.bufs)
	}
	p.lines = nil
}

// close ends the pool; lines that come back later are closed.
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
