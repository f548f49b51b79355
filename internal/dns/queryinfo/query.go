// Package queryinfo is what goes with a query next to its message, from the socket to the last plugin: the client's identity, and the level
// at which the answer was found.
//
// It guarantees that a plugin can read and note both at any time. It imports none of its siblings.
//
// It cannot fail: a context without a query is one of the agent's own.
package queryinfo

import (
	"context"
	"net/netip"
	"sync/atomic"
)

// Level is where an answer came from.
type Level uint32

// The levels. Hit and Stale are answers from the cache.
const (
	Miss  Level = iota // an upstream, the configuration, or there was none
	Hit                // the cache, within the answer's TTL or as it was confirmed
	Stale              // the cache, after the answer's TTL
)

// FromCache reports whether the answer came from the cache.
func (l Level) FromCache() bool { return l != Miss }

// Query is one query on its way through the plugins. Its fields do not change meanwhile. Nothing reads a nil Query.
type Query struct {
	Client   netip.Addr // without zone and mapping; not valid: the query is no client's
	Identity any        // what the listener's observer knows of the client; nil: nothing

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

// Answer is the outcome of one query.
type Answer struct {
	Client   netip.Addr // not valid: the query was the agent's own
	Identity any        // as in Query
	Rcode    int        // of what was written; NOERROR where nothing was
	Size     int        // bytes of the answer, without TCP's length; 0: nothing was written
	Level    Level
}

// Key is a context's key of its *Query.
type Key struct{}

// From returns the query that a context belongs to; nil for none.
func From(ctx context.Context) *Query {
	q, _ := ctx.Value(Key{}).(*Query)
	return q
}

// With returns a context that belongs to q. With nil, queries in it are no client's.
func With(ctx context.Context, q *Query) context.Context { return context.WithValue(ctx, Key{}, q) }
