package listener

import (
	"sync/atomic"
	"time"
)

// serving is a chain and the number of its queries in progress.
type serving struct {
	chain Chain

	users atomic.Int64  // queries in progress, and one more until retire
	idle  chan struct{} // closed when users has come to zero
}

func newServing(c Chain) *serving {
	s := &serving{chain: c, idle: make(chan struct{})}
	s.users.Store(1)
	return s
}

// enter counts a query in. It fails once the chain is retired and has no query in progress.
func (s *serving) enter() bool {
	for {
		n := s.users.Load()
		if n == 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *serving) leave() {
	if s.users.Add(-1) == 0 {
		close(s.idle)
	}
}

// retire waits until the chain has answered all its queries, for up to grace, and closes it. No point may lead to it any more.
func (s *serving) retire(grace time.Duration, final bool) error {
	s.leave()
	select {
	case <-s.idle:
	case <-time.After(grace):
	}
	return s.chain.Close(final)
}
