package forward

import (
	"sync"
	"time"
)

// Times and bounds of the lines that wait for the next question.
const (
	// CoreDNS closes an idle stream after 10 s (core/dnsserver's default), so we must be first.
	idleLimit = 8 * time.Second
	// maxIdle lines wait per server and protocol: half of the misses that may be in flight by default, one source's share.
	// With fewer, a busy node would open and close connections all the time.
	maxIdle = 512
)

// pool keeps lines to one server for the next question, oldest first: with datagrams that varies the source port.
type pool struct {
	bufs *buffers

	mu     sync.Mutex // guards the fields below
	lines  []*line
	sweep  *time.Timer // armed while lines wait
	closed bool
}

// take hands out a line that waits, or nil.
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

// give takes a line back. Its answer has been read whole.
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

// expire closes what has waited too long, and comes again while something waits.
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

// flush closes all lines that wait: what was behind them is not there any more.
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

func (p *pool) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}
