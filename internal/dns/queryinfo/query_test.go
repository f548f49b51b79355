package queryinfo

import (
	"context"
	"testing"
)

// TestFound: the last level counts, a nil Query has none, and a query with the context of With(ctx, nil) is no client's.
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
