package listener

import (
	"sync"
	"sync/atomic"
)

// pauser pauses the goroutine that reads a socket, which calls pass before each read. The zero value lets it pass.
type pauser struct {
	mu    sync.Mutex // serialises shut, open and end
	block atomic.Pointer[barrier]
}

type barrier struct {
	lifted chan struct{}
	final  bool
}

// pass blocks while the reader is paused. It returns false after end.
func (p *pauser) pass() bool {
	for {
		b := p.block.Load()
		switch {
		case b == nil:
			return true
		case b.final:
			return false
		}
		<-b.lifted
	}
}

func (p *pauser) shut() { p.change(&barrier{lifted: make(chan struct{})}) }
func (p *pauser) open() { p.change(nil) }
func (p *pauser) end()  { p.change(&barrier{final: true}) }

func (p *pauser) change(next *barrier) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.block.Load()
	if before != nil && before.final {
		return
	}
	p.block.Store(next)
	if before != nil {
		close(before.lifted)
	}
}
