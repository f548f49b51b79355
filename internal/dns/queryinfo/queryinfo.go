// Package queryinfo defines what accompanies a query from the socket to the last plugin, apart from its message: the client's identity,
// and whether the answer was a hit, a miss or stale.
//
// A plugin can read it, and set the level, at any time. It imports no other package of this module.
//
// It cannot fail: a context without a Query is that of one of the agent's own queries.
package queryinfo

import (
	"context"
	"net/netip"
	"sync/atomic"
)

// Level is where an answer came from.
type Level uint32

// The levels.
const (
	Miss  Level = iota // answered by an upstream or by the configuration, or not answered
	Hit                // answered from the cache within the TTL, or by the upstream after the cache found an expired entry
	Stale              // answered from the cache after the TTL
)

// Query describes one query on its way through the plugins. Its exported fields do not change meanwhile. Its methods accept a nil Query.
type Query struct {
	Client   netip.Addr // without zone and IPv4 mapping; not valid if no client sent the query
	Identity any        // what the listener's Observer knows of the client; nil: nothing

	level atomic.Uint32
}

// Found records where the answer was found; the last call counts. It is safe for concurrent use.
func (q *Query) Found(l Level) {
	if q != nil {
		q.level.Store(uint32(l))
	}
}

// Level returns the level of the last call of Found; Miss if there was none.
func (q *Query) Level() Level {
	if q == nil {
		return Miss
	}
	return Level(q.level.Load())
}

// Answer is the outcome of one query.
type Answer struct {
	Client   netip.Addr // not valid if the query was the agent's own
	Identity any        // as in Query
	Rcode    int        // of the answer that was written; NOERROR if none was
	Size     int        // of the answer in bytes, without TCP's length field; 0: none was written
	Level    Level
}

// Key is the context key of a *Query.
type Key struct{}

// From returns the Query of a context, or nil if there is none.
func From(ctx context.Context) *Query {
	q, _ := ctx.Value(Key{}).(*Query)
	return q
}
