package front

import (
	"sync"
	"sync/atomic"
)

// gate is what whoever reads a socket passes before each read. It is open until it is told otherwise.
type gate struct {
	mu    sync.Mutex // serialises shut, open and end
	block atomic.Pointer[barrier]
}

type barrier struct {
	lifted chan struct{}
	final  bool
}

// pass waits while the gate is shut. It returns false once the gate has ended.
func (g *gate) pass() bool {
	for {
		b := g.block.Load()
		switch {
		case b == nil:
			return true
		case b.final:
			return false
		}
		<-b.lifted
	}
}

func (g *gate) shut() { g.change(&barrier{lifted: make(chan struct{})}) }
func (g *gate) open() { g.change(nil) }
func (g *gate) end()  { g.change(&barrier{final: true}) }

func (g *gate) change(next *barrier) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.block.Load()
	if before != nil && before.final {
		return
	}
	g.block.Store(next)
	if before != nil {
		close(before.lifted)
	}
}
