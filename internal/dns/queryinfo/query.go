// Package queryinfo is what is known of one question beside its message, from the socket to the last plugin: who asks, and at which level
// the answer was found. It is a leaf: it imports none of its siblings.
package queryinfo

import (
	"context"
	"net/netip"
	"sync/atomic"
)

// Level tells where an answer came from.
type Level uint32

// The levels. Hit and Stale are answers that were kept.
const (
	Miss  Level = iota // an upstream, the configuration, or nobody
	Hit                // the cache, within the answer's TTL or as it was confirmed
	Stale              // the cache, after the answer's TTL
)

// Kept reports whether the cache had the answer.
func (l Level) Kept() bool { return l != Miss }

// Query is one question on its way. Its fields do not change once it is under way. A nil Query is one that nobody looks at.
type Query struct {
	Client netip.Addr // without zone and mapping; not valid: no client asks
	Who    any        // what the front's observer knows of the client; nil: nothing

	level atomic.Uint32
}

// Found notes the level at which the answer was found; the last one counts. It is safe for concurrent use.
func (q *Query) Found(l Level) {
	if q != nil {
		q.level.Store(uint32(l))
	}
}

// Level returns what was noted last.
func (q *Query) Level() Level {
	if q == nil {
		return Miss
	}
	return Level(q.level.Load())
}

// Answer is what became of one question.
type Answer struct {
	Client netip.Addr // not valid: it was a question of the agent's own
	Who    any        // as in Query
	Rcode  int        // of what was written; NOERROR where nothing was
	Size   int        // bytes of the answer, without TCP's length; 0: nothing was written
	Level  Level
}

// Key is a context's key of its *Query.
type Key struct{}

// From returns the question that a context belongs to; nil for none.
func From(ctx context.Context) *Query {
	q, _ := ctx.Value(Key{}).(*Query)
	return q
}

// With returns a context that belongs to q. With nil, what is asked in it is no client's question.
func With(ctx context.Context, q *Query) context.Context { return context.WithValue(ctx, Key{}, q) }
