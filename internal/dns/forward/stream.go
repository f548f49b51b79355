package forward

import (
	"sync"
	"sync/atomic"
	"time"
)

// When a server counts as one without TCP, datagrams are tried first. That is the only effect: an answer that does not fit a datagram is
// still fetched over a stream.
const (
	// streamFails streams in a row must have failed while the server answered over datagrams, the first of them streamSpan ago: a lost
	// SYN, or an endpoint that has just ended, says nothing about the next connection.
	streamFails = 3
	streamSpan  = 3 * time.Second
	// streamlessFor is how long datagrams are then tried first; streamTurn is how long the one query that tries a stream afterwards has to
	// succeed.
	streamlessFor = 10 * time.Second
	streamTurn    = time.Second
)

// streams is the state of a server's streams.
type streams struct {
	until  atomic.Int64 // datagrams are tried first until then, by the server's clock; 0: streams are
	failed atomic.Int32 // failures in a row
	worked atomic.Bool  // a stream has carried an answer, so a connected stream without an answer is only slow

	mu    sync.Mutex // guards the field below, and changes of those above
	since int64      // when the first of the failures in a row was
}

// streamless reports whether datagrams are tried first.
func (s *server) streamless(now time.Time) bool {
	return s.tls == nil && s.streams.until.Load() > s.at(now)
}

// streamFirst reports whether a query should use a stream. When streamlessFor is over, one query tries a stream and the others keep using
// datagrams for a moment; otherwise all of them would wait if TCP packets still vanish.
func (s *server) streamFirst(now time.Time) bool {
	until, at := s.streams.until.Load(), s.at(now)
	return s.tls != nil || until == 0 || at >= until && s.streams.until.CompareAndSwap(until, at+int64(streamTurn))
}

// streamFailed records a query that the server answered over datagrams although its stream failed.
func (s *server) streamFailed(now time.Time, why error) {
	st, at := &s.streams, s.at(now)
	st.mu.Lock()
	defer st.mu.Unlock()
	n := st.failed.Add(1)
	if n == 1 {
		st.since = at
	}
	if n < streamFails || at-st.since < int64(streamSpan) {
		return
	}
	if was := st.until.Swap(at + int64(streamlessFor)); was == 0 {
		s.log.Info("upstream does not accept TCP; UDP is tried first", "server", s.name, "err", why, "again", streamlessFor)
	}
}

// streamWorks records an answer over a stream.
func (s *server) streamWorks() {
	st := &s.streams
	if st.failed.Load() == 0 && st.until.Load() == 0 && st.worked.Load() {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.worked.Store(true)
	st.failed.Store(0)
	if st.until.Swap(0) != 0 {
		s.log.Info("upstream accepts TCP again", "server", s.name)
	}
}

// doubtful reports whether streams have failed lately and none has worked since.
func (s *server) doubtful() bool { return s.tls == nil && s.streams.failed.Load() > 1 }
