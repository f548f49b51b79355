package queryinfo

import (
	"context"
	"testing"
)

// TestFound: the last level counts, a query without an observer takes none, and what is queried under With(nil) is no client's.
func TestFound(t *testing.T) {
	q := new(Query)
	ctx := With(context.Background(), q)
	if From(context.Background()) != nil || From(ctx) != q || q.Level() != Miss || q.Level().FromCache() {
		t.Error("a new question")
	}
	From(ctx).Found(Stale)
	From(ctx).Found(Hit)
	if q.Level() != Hit || !q.Level().FromCache() || !Stale.FromCache() {
		t.Errorf("level %d", q.Level())
	}
	inner := With(ctx, nil)
	From(inner).Found(Stale)
	if From(inner) != nil || From(inner).Level() != Miss || q.Level() != Hit {
		t.Errorf("an inner question made the client's level %d", q.Level())
	}
}
