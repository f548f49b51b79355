package listener

import (
	"sync/atomic"
	"time"
)

// serving is a plugin chain with the number of its uses in progress: a use is a query, or a batch of datagrams on the fast path.
type serving struct {
	chain Chain

	users atomic.Int64  // uses in progress, plus one until retire
	idle  chan struct{} // closed when users has come to zero
}

func newServing(c Chain) *serving {
	s := &serving{chain: c, idle: make(chan struct{})}
	s.users.Store(1)
	return s
}

// enter counts a use. It returns false if the chain is retired and has none in progress.
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

// retire waits until the chain has answered its queries, for grace at most, and closes it. No listening socket may use it any more.
func (s *serving) retire(grace time.Duration, final bool) error {
	s.leave()
	select {
	case <-s.idle:
	case <-time.After(grace):
	}
	return s.chain.Close(final)
}
