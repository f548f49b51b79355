package forward

import (
	"sync"
	"sync/atomic"
	"time"
)

// When a server is taken for one without TCP: then datagrams are tried first. Never more than that: what does not fit a
// datagram is fetched over a stream all the same.
const (
	// streamFails streams running must not have come about, while the server answered over datagrams, and the first of them
	// so long ago: a lost SYN, or an endpoint that has just ended, says nothing of the next connection.
	streamFails = 3
	streamSpan  = 3 * time.Second
	// streamlessFor is for how long then; streamTurn how long the one question that tries a stream after it has to succeed.
	streamlessFor = 10 * time.Second
	streamTurn    = time.Second
)

// streams is what is known of a server's streams.
type streams struct {
	until  atomic.Int64 // datagrams are tried first until then, by the server's clock; 0: streams are
	failed atomic.Int32 // running
	worked atomic.Bool  // one has carried an answer, ever: then one that stands and is silent is slow, and no more

	mu    sync.Mutex // guards the field below, and changes of those above
	since int64      // of the first failure of those that are running
}

// streamless reports whether datagrams are tried first.
func (s *server) streamless(now time.Time) bool {
	return s.tls == nil && s.streams.until.Load() > s.at(now)
}

// streamFirst reports whether a question is to be asked over a stream. When the time of the mark is over, one question
// finds out, and the others go on as before for a moment: else all of them would wait where TCP still vanishes.
func (s *server) streamFirst(now time.Time) bool {
	until, at := s.streams.until.Load(), s.at(now)
	return s.tls != nil || until == 0 || at >= until && s.streams.until.CompareAndSwap(until, at+int64(streamTurn))
}

// streamFailed notes a question that the server answered over datagrams and that no stream brought to it.
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
		s.log.Info("upstream does not take TCP, UDP is tried first", "server", s.name, "err", why, "again", streamlessFor)
	}
}

// streamWorks notes an answer over a stream.
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
		s.log.Info("upstream takes TCP again", "server", s.name)
	}
}

// doubtful reports whether streams have failed lately and none has worked since.
func (s *server) doubtful() bool { return s.tls == nil && s.streams.failed.Load() > 1 }
